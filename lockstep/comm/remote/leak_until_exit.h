// SPDX-License-Identifier: BSD-3-Clause
// Keeps what a failed engine leaves behind until the process ends.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::remote {

// A library may still access the object, until its own timeout or the end of the process.
template <class T>
void leak_until_exit(std::unique_ptr<T> object) {
  static auto& kept = *new std::vector<std::unique_ptr<T>>;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(object));
}

}  // namespace lockstep::remote
