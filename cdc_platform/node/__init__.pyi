from cdc_platform.node.coordinator import Coordinator as Coordinator
from cdc_platform.node.coordinator import RetryLoop as RetryLoop
from cdc_platform.node.participant import LeasePromise as LeasePromise
from cdc_platform.node.switch_member import SwitchMember as SwitchMember
