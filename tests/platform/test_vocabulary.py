"""Names and numbers of messages are FedML's own where FedML has them."""

from __future__ import annotations

from fedml.core.distributed.communication.constants import CommunicationConstants
from fedml.core.distributed.communication.message import Message
from fedml.cross_silo.client.fedml_client_master_manager import ClientMasterManager
from fedml.cross_silo.client.message_define import MyMessage

from fedml_dapper.federation.wire import vocabulary
from fedml_dapper.secure_grpc.message import TRIPLE


def test_messages_are_called_as_fedml_calls_them() -> None:
    assert vocabulary.CONNECTION_IS_READY == CommunicationConstants.MSG_TYPE_CONNECTION_IS_READY
    assert vocabulary.SYNC_MODEL == MyMessage.MSG_TYPE_S2C_SYNC_MODEL_TO_CLIENT
    assert vocabulary.SEND_UPLOAD == MyMessage.MSG_TYPE_C2S_SEND_MODEL_TO_SERVER
    assert vocabulary.CLIENT_STATUS == MyMessage.MSG_TYPE_C2S_CLIENT_STATUS
    assert vocabulary.CHECK_STATUS == MyMessage.MSG_TYPE_S2C_CHECK_CLIENT_STATUS
    assert vocabulary.FINISH == MyMessage.MSG_TYPE_S2C_FINISH
    assert vocabulary.MODEL == MyMessage.MSG_ARG_KEY_MODEL_PARAMS
    assert vocabulary.NUM_SAMPLES == MyMessage.MSG_ARG_KEY_NUM_SAMPLES
    assert vocabulary.STATUS == MyMessage.MSG_ARG_KEY_CLIENT_STATUS
    assert vocabulary.ONLINE == ClientMasterManager.ONLINE_STATUS_FLAG
    assert vocabulary.FINISHED == ClientMasterManager.RUN_FINISHED_STATUS_FLAG
    assert set(TRIPLE) == set(Message().get_params())
