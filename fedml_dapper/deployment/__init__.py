"""Files of models for devices: their formats, how they are checked, and what an app has to know of them."""
