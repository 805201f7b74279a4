// SPDX-License-Identifier: BSD-3-Clause
// The interface of an engine, which carries out the tasks of a group.
#pragma once

#include "lockstep/comm/core/progress.h"
#include "lockstep/comm/core/task.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

// Carries out tasks. Thread-safe.
class TaskEngine : public Progressing {
 public:
  // Advances as far as possible without waiting; true if the task is done.
  virtual bool poll(Task& task) = 0;
  // What waits: the calling thread, or, if possible, its current stream on the device.
  enum class Waiting { thread, thread_or_stream };
  // Blocks until the task is done. TimeoutError and PeerLost name the rank waited for.
  virtual void wait(Task& task, const Deadline& deadline, Waiting who) = 0;
};

}  // namespace lockstep
