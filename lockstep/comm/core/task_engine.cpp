// SPDX-License-Identifier: BSD-3-Clause
// The process-wide list of engines and operations that can be advanced.
#include "lockstep/comm/core/task_engine.h"

#include <mutex>

namespace lockstep {
namespace {

struct List {
  std::mutex mutex;
  std::vector<std::weak_ptr<Progressing>> entries;
};

// Never destroyed: groups may live in static objects.
List& list() {
  static List& list = *new List;
  return list;
}

// The pointers keep the entries alive while they are used without the list's lock.
std::vector<std::shared_ptr<Progressing>> others(const Progressing& self) {
  std::vector<std::shared_ptr<Progressing>> found;
  const std::lock_guard lock(list().mutex);
  for (const auto& entry : list().entries) {
    auto progressing = entry.lock();
    if (progressing && progressing.get() != &self) found.push_back(std::move(progressing));
  }
  return found;
}

}  // namespace

void share_progress(const std::shared_ptr<Progressing>& progressing) {
  const std::lock_guard lock(list().mutex);
  std::erase_if(list().entries, [](const auto& entry) { return entry.expired(); });
  list().entries.push_back(progressing);
}

bool advance_others(const Progressing& self) {
  bool moved = false;
  for (const auto& other : others(self)) moved |= other->try_advance();
  return moved;
}

OthersBusy others_busy(const Progressing& self) {
  OthersBusy busy;
  for (auto& other : others(self)) {
    if (Doorbell* doorbell = other->doorbell_if_busy()) {
      busy.owners.push_back(std::move(other));
      busy.doorbells.push_back(doorbell);
    }
  }
  return busy;
}

}  // namespace lockstep
