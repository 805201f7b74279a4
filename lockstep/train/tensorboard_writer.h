// SPDX-License-Identifier: BSD-3-Clause
// Writes event files for TensorBoard, like Python's torch.utils.tensorboard.SummaryWriter.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace lockstep {

// One event file in a folder; each object makes its own, so that a resumed run adds a
// file, and calls purge() first: FitOptions::resumed is the place for it. Usually rank 0 has one
// and the others have none. A tag such as "loss/train" groups charts by the part before the slash.
// `step` is the x axis. Bytes of a tag or a text that are not UTF-8 are replaced by U+FFFD: a
// reader would stop at such an event.
//
// Events are collected in memory, and written by flush(), by the destructor, when 64 KiB have
// gathered, and by the first call that comes two seconds after the last write. Used by one thread
// at a time.
//
// A disk that cannot take events, such as a full one, does not end a training: from then on events
// are dropped, after a warning (TORCH_WARN) with the path and the system's reason. error() tells.
class TensorBoardWriter {
 public:
  // Makes the folder, and in it events.out.tfevents.<seconds>.<host>.<pid>.<number>. BackendError
  // if that is not possible.
  explicit TensorBoardWriter(const std::filesystem::path& folder);
  // Writes what is left.
  ~TensorBoardWriter();
  TensorBoardWriter(TensorBoardWriter&&) noexcept;
  TensorBoardWriter& operator=(TensorBoardWriter&&) noexcept;

  // TensorBoard keeps scalars as floats.
  void add_scalar(std::string_view tag, double value, std::int64_t step);

  // The distribution of a tensor's elements, of any real type, shape and device. Its buckets are
  // those of Python's default: their limits grow by 10 % from 1e-12 to 1e20, the same for negative
  // numbers. UsageError if the tensor is empty, or an element is infinite or NaN.
  void add_histogram(std::string_view tag, const at::Tensor& values, std::int64_t step);

  // Shown as Markdown.
  void add_text(std::string_view tag, std::string_view text, std::int64_t step);

  // TensorBoard forgets what earlier files of the folder have from this step on. A resumed run
  // calls it before its first event, or its steps since the checkpoint would be there twice.
  void purge(std::int64_t step);

  void flush();

  // Why events have been dropped; empty if none have.
  std::string error() const;

  const std::filesystem::path& file() const;

 private:
  class File;
  std::unique_ptr<File> file_;
};

}  // namespace lockstep
