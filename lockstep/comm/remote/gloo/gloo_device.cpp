// SPDX-License-Identifier: BSD-3-Clause
// Makes Gloo's device with a thread that does not preempt others.
#include "lockstep/comm/remote/gloo/gloo_device.h"

#include <sched.h>

namespace lockstep {
namespace {

// While this lives, new threads get SCHED_BATCH (sched(7)): when they wake, they do not take a core
// at once from a thread that runs.
class BackgroundThreads {
 public:
  BackgroundThreads() {
    if (ordinary_) set(SCHED_BATCH);
  }
  ~BackgroundThreads() {
    if (ordinary_) set(SCHED_OTHER);
  }
  BackgroundThreads(const BackgroundThreads&) = delete;
  BackgroundThreads& operator=(const BackgroundThreads&) = delete;

 private:
  // Where this is forbidden, Gloo is only slower.
  static void set(int policy) {
    const sched_param priority{};
    ::sched_setscheduler(0, policy, &priority);
  }
  const bool ordinary_ = ::sched_getscheduler(0) == SCHED_OTHER;
};

}  // namespace

// If Gloo's thread took the core from a thread that holds a connection's lock in order to send, it
// would retry the lock until the end of its time slice, some milliseconds later.
std::shared_ptr<gloo::transport::Device> make_gloo_device() {
  const BackgroundThreads background;
  return c10d::ProcessGroupGloo::createDeviceForHostname(kGlooHost);
}

}  // namespace lockstep
