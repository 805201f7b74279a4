// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/remote/gloo/gloo_device.h"

#include <sched.h>

namespace lockstep {
namespace {

// A thread that is made while this lives does not take a core at once when it wakes, from one that
// runs (SCHED_BATCH of sched(7)).
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
  // Where that is forbidden things are slower, and nothing else.
  static void set(int policy) {
    const sched_param priority{};
    ::sched_setscheduler(0, policy, &priority);
  }
  const bool ordinary_ = ::sched_getscheduler(0) == SCHED_OTHER;
};

}  // namespace

// If its thread took the core from one that holds the lock of a connection, in order to send on it,
// it would try for the lock again and again until the end of its time slice, some milliseconds
// later.
std::shared_ptr<gloo::transport::Device> make_gloo_device() {
  const BackgroundThreads background;
  return c10d::ProcessGroupGloo::createDeviceForHostname(kGlooHost);
}

}  // namespace lockstep
