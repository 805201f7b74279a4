// SPDX-License-Identifier: BSD-3-Clause
// Polls or waits for an operation's tasks, then copies the results back.
#include "lockstep/comm/core/copying_operation.h"

#include <algorithm>

namespace lockstep {

std::vector<at::Tensor> CopyingOperation::inputs(at::TensorList originals) const {
  std::vector<at::Tensor> staged;
  staged.reserve(originals.size());
  for (const at::Tensor& original : originals) staged.push_back(input(original));
  return staged;
}

std::vector<at::Tensor> CopyingOperation::outputs(at::TensorList originals) {
  std::vector<at::Tensor> staged;
  staged.reserve(originals.size());
  for (const at::Tensor& original : originals) staged.push_back(output(original));
  return staged;
}

bool CopyingOperation::finished() const {
  return copies_.empty() &&
         std::ranges::all_of(tasks_, [](const auto& task) { return task->done(); });
}

bool CopyingOperation::poll() {
  for (const auto& task : tasks_) {
    if (!engine_->poll(*task)) return false;
  }
  copies_.copy_back();
  return true;
}

void CopyingOperation::wait(const Deadline& deadline) {
  // The thread must wait for results in memory that the device's stream does not order.
  const auto who =
      copies_.go_elsewhere() ? TaskEngine::Waiting::thread : TaskEngine::Waiting::thread_or_stream;
  for (const auto& task : tasks_) engine_->wait(*task, deadline, who);
  copies_.copy_back();
}

}  // namespace lockstep
