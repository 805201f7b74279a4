// SPDX-License-Identifier: BSD-3-Clause
// The Operation of every engine: its tasks, and copies of the tensors that the engine cannot use in
// place.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <c10/util/SmallVector.h>

#include "lockstep/comm/core/task_engine.h"
#include "lockstep/comm/types/work.h"
#include "lockstep/core/deadline.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {

class CopyingOperation final : public Operation {
 public:
  // The engine uses contiguous tensors on this device.
  CopyingOperation(std::shared_ptr<TaskEngine> engine, std::chrono::milliseconds timeout,
                   at::Device device)
      : engine_(std::move(engine)), timeout_(timeout), copies_(device) {}

  // The tensors that the engine reads and writes in place of the caller's tensors.
  at::Tensor input(const at::Tensor& original) const { return copies_.input(original); }
  const at::Tensor& output(const at::Tensor& original) { return copies_.output(original); }
  std::vector<at::Tensor> inputs(at::TensorList originals) const;
  std::vector<at::Tensor> outputs(at::TensorList originals);

  // Adds a started task.
  void add(std::shared_ptr<Task> task) { tasks_.push_back(std::move(task)); }

  bool finished() const override;
  bool poll() override;
  void wait(const Deadline& deadline) override;
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  std::shared_ptr<TaskEngine> engine_;
  std::chrono::milliseconds timeout_;
  c10::SmallVector<std::shared_ptr<Task>, 1> tasks_;
  DeviceCopies copies_;
};

}  // namespace lockstep
