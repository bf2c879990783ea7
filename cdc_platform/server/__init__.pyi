from cdc_platform.server.addresses import LOOPBACK as LOOPBACK
from cdc_platform.server.addresses import PublicUrl as PublicUrl
from cdc_platform.server.addresses import UiAddresses as UiAddresses
from cdc_platform.server.addresses import listen_on_loopback as listen_on_loopback
from cdc_platform.server.addresses import parse_public_url as parse_public_url
from cdc_platform.server.services import CODE_LOCATION as CODE_LOCATION
from cdc_platform.server.services import UpServices as UpServices
from cdc_platform.server.services import generate_token as generate_token
