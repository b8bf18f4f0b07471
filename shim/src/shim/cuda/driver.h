// Declares the part of CUDA's driver that is called. The driver's interface is used, not the runtime's: every CUDA
// process has loaded libcuda.so.1, whichever runtime it was built with, and its symbols have been the same since CUDA
// 10.
#pragma once

#include "common/ring.h"

namespace falcon {

using Event = void*;
using Context = void*;

struct Driver {
  int (*event_create)(Event*, unsigned int);
  int (*event_record)(Event, const void*);
  int (*event_query)(Event);
  int (*event_elapsed)(float*, Event, Event);
  int (*stream_capturing)(const void*, int*);
  int (*exchange_capture_mode)(int*);
  int (*context_current)(Context*);
  int (*set_context)(Context);
};

// Null: there is none, and `why` says so if it is given.
const Driver* driver(NoDeviceTimes* why = nullptr);

}  // namespace falcon
