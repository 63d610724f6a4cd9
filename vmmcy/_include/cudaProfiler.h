/* cuda-bindings up to 13.3 includes this header; nothing in vmmcy calls what it declares. */
#pragma once
