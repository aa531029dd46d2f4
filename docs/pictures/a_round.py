"""A round of DapperFL: what happens on the server, on a weak client, and between the two."""

from __future__ import annotations

from docs.pictures.canvas import Colour, Picture

_LAYERS, _CHANNELS = 3, 5
_CUT = {(0, 1), (0, 4), (1, 0), (1, 3), (2, 2), (2, 3)}
"""Layer and channel of what a weak client's model lacks."""
_STEP = 22


def picture() -> Picture:
    drawn = Picture(
        "A DapperFL round",
        "The server sends the full global model W to a client. The client trains it for one epoch, fuses the result"
        " with W, cuts the channels of least l1 norm, trains the slim model for the remaining epochs with DAR, and"
        " uploads it with the indices of the channels that it kept. The server refills what was cut from W and averages"
        " over the clients.",
        height=440,
    )
    drawn.box(16, 14, 868, 150, colour="blue", fill="dash")
    drawn.text(30, 38, "Server", size=16, colour="blue", bold=True)
    drawn.box(16, 236, 868, 196, colour="orange", fill="dash")
    drawn.text(450, 262, "A client of a weak level", size=16, anchor="middle", colour="orange", bold=True)

    _network(drawn, 102, 52, colour="blue")
    drawn.text(126, 154, "global model W", anchor="middle", size=13)
    drawn.text(372, 70, "7  Refill and average", size=15, bold=True)
    drawn.lines(
        372, 92, "A channel that a client cut counts as W there.", "Then the mean over clients, by samples (Eq. 6-7).",
        size=13,
    )  # fmt: skip
    _network(drawn, 756, 52, colour="orange", cut=True)
    _network(drawn, 756, 52, colour="blue", only_cut=True)
    drawn.text(780, 154, "refilled", anchor="middle", size=13)
    drawn.arrow((740, 122), (190, 122), colour="blue")
    drawn.text(458, 144, "next global model", anchor="middle", size=13, colour="soft")

    drawn.arrow((126, 168), (126, 270), colour="blue")
    drawn.text(140, 198, "1  Download", size=15, bold=True)
    drawn.text(140, 218, "the full model W", size=13)
    drawn.arrow((780, 290), (780, 168), colour="orange")
    drawn.text(766, 198, "6  Upload", size=15, bold=True, anchor="end")
    drawn.text(766, 218, "slim model, kept channel indices", size=13, anchor="end")

    steps = (
        ("2  One dense epoch", "all channels, with DAR"),
        ("3  Fusion", "mixed with W (Eq. 1-2)"),
        ("4  Pruning", "least l1 norm goes"),
        ("5  Slim epochs", "2 to E, with DAR (Eq. 3-5)"),
    )
    for number, (name, what) in enumerate(steps):
        middle = 126 + number * 218
        drawn.text(middle, 394, name, anchor="middle", size=15, bold=True)
        drawn.text(middle, 416, what, anchor="middle", size=13)
        if number:
            drawn.arrow((middle - 150, 320), (middle - 50, 320), colour="orange")
    _network(drawn, 102, 282, colour="orange")
    _network(drawn, 320, 282, colour="orange")
    _network(drawn, 538, 282, colour="orange", cut=True)
    _network(drawn, 538, 282, colour="soft", only_cut=True, gone=True)
    for layer in range(_LAYERS):
        for channel in range(_CHANNELS - len(_CUT) // _LAYERS):
            drawn.circle(758 + layer * _STEP, 320 + (channel - 1) * (_STEP - 3), 7, colour="orange", fill="full")
    return drawn


def _network(
    drawn: Picture, left: float, top: float, *, colour: Colour, cut: bool = False, only_cut: bool = False,
    gone: bool = False,
) -> None:  # fmt: skip
    """Channels as dots, a column a layer: all, those that are left (``cut``), or those that were cut (``only_cut``)."""
    for layer in range(_LAYERS):
        for channel in range(_CHANNELS):
            is_cut = (layer, channel) in _CUT
            if (only_cut and is_cut) or not (only_cut or (cut and is_cut)):
                x, y = left + 2 + layer * _STEP, top + channel * (_STEP - 3)
                drawn.circle(x, y, 7, colour=colour, fill="dash" if gone else "full")
