// SPDX-License-Identifier: BSD-3-Clause
// Builds TensorBoard's messages, and appends them to the event file.
#include "lockstep/train/tensorboard_writer.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/core/system_error.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/tensor/device_copies.h"
#include "lockstep/train/event_encoding.h"

namespace lockstep {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{64} << 10;
constexpr std::chrono::seconds kFlushInterval{2};

// Field numbers of tensorboard/compat/proto: event (also its session log), summary, histogram,
// tensor, tensor_shape.
namespace fields {
constexpr unsigned kEventTime = 1, kEventStep = 2, kEventVersion = 3, kEventSummary = 5,
                   kEventSession = 7;
constexpr unsigned kSessionStatus = 1;
constexpr unsigned kSummaryValue = 1;
constexpr unsigned kValueTag = 1, kValueSimple = 2, kValueHistogram = 5, kValueTensor = 8,
                   kValueMetadata = 9;
constexpr unsigned kMetadataPlugin = 1, kPluginName = 1;
constexpr unsigned kLeast = 1, kMost = 2, kCount = 3, kSum = 4, kSumOfSquares = 5, kLimits = 6,
                   kBuckets = 7;
constexpr unsigned kTensorType = 1, kTensorShape = 2, kTensorStrings = 8;
constexpr unsigned kShapeDimension = 2, kDimensionSize = 1;
}  // namespace fields

constexpr std::int64_t kStringType = 7;    // DT_STRING
constexpr std::int64_t kSessionStart = 1;  // SessionLog.START

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The upper limits of all buckets, ascending.
const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    std::vector<double> all;
    for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) all.push_back(-*limit);
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    all.push_back(std::numeric_limits<double>::max());
    return all;
  }();
  return limits;
}

// Replaces each byte that is not part of a character by U+FFFD.
std::string as_utf8(std::string_view text) {
  const nlohmann::json json(text);
  return nlohmann::json::parse(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
      .get<std::string>();
}

// Returns the elements of a tensor of any layout on the host, in double.
at::Tensor all_elements(const at::Tensor& values) {
  at::Tensor dense = values.detach();
  if (dense.is_quantized()) dense = dense.dequantize();
  if (dense.layout() != at::kStrided) dense = dense.to_dense();
  return on_host(dense.to(at::kDouble));
}

EventMessage histogram_of(const at::Tensor& elements) {
  const auto* begin = elements.data_ptr<double>();
  const auto* end = begin + elements.numel();
  const std::vector<double>& limits = bucket_limits();
  std::vector<double> counts(limits.size());
  double sum = 0;
  double squares = 0;
  for (const double* value = begin; value != end; ++value) {
    sum += *value;
    squares += *value * *value;
    counts[static_cast<std::size_t>(std::ranges::lower_bound(limits, *value) - limits.begin())] +=
        1;
  }
  // Empty buckets at both ends are left out, except one on each side, which bounds the picture.
  const auto occupied = [](double count) { return count > 0; };
  const auto first = std::ranges::find_if(counts, occupied) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), occupied);
  const auto from = static_cast<std::size_t>(std::max<std::ptrdiff_t>(first - 1, 0));
  const std::size_t count = std::min(static_cast<std::size_t>(last) + 1, limits.size()) - from;
  EventMessage histogram;
  histogram.real(fields::kLeast, *std::min_element(begin, end))
      .real(fields::kMost, *std::max_element(begin, end))
      .real(fields::kCount, static_cast<double>(end - begin))
      .real(fields::kSum, sum)
      .real(fields::kSumOfSquares, squares)
      .reals(fields::kLimits, {limits.data() + from, count})
      .reals(fields::kBuckets, {counts.data() + from, count});
  return histogram;
}

}  // namespace

class TensorBoardWriter::File {
 public:
  explicit File(const std::filesystem::path& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      throw BackendError(fmt::format("cannot make the folder {} for TensorBoard: {}",
                                     folder.string(), error.message()));
    }
    static std::atomic<int> number = 0;
    path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                                 static_cast<std::int64_t>(seconds_since_epoch()), host_name(),
                                 ::getpid(), number++);
    fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd_) error_ = errno;
    if (error_ != 0) throw BackendError(fault());
    EventMessage event;
    event.real(fields::kEventTime, seconds_since_epoch())
        .bytes(fields::kEventVersion, "brain.Event:2");
    gathered_ = event_record(event.encoded());
    append_gathered();
    if (error_ != 0) throw BackendError(fault());
  }

  ~File() {
    try {
      write();
    } catch (const std::exception&) {
      // A handler may turn the warning into an exception.
    }
  }

  void add(const EventMessage& value, std::int64_t step) {
    EventMessage summary;
    summary.message(fields::kSummaryValue, value);
    add_event(step, fields::kEventSummary, summary);
  }

  void add_event(std::int64_t step, unsigned field, const EventMessage& message) {
    if (error_ != 0) return;
    EventMessage event;
    event.real(fields::kEventTime, seconds_since_epoch())
        .integer(fields::kEventStep, step)
        .message(field, message);
    gathered_ += event_record(event.encoded());
    if (gathered_.size() >= kFlushBytes || Clock::now() - written_at_ >= kFlushInterval) write();
  }

  void write() {
    if (error_ != 0) return;
    append_gathered();
    if (error_ == 0) return;
    libtorch::warn("TensorBoardWriter",
                   "[TensorBoardWriter] " + fault() + "; its events are dropped from now on");
  }

  const std::filesystem::path& path() const { return path_; }

  // Why events were dropped; empty if none were.
  std::string fault() const {
    if (error_ == 0) return "";
    return fmt::format("cannot write the event file {}: {}", path_.string(), reason_of(error_));
  }

 private:
  using Clock = std::chrono::steady_clock;

  void append_gathered() {
    std::string_view rest = gathered_;
    while (error_ == 0 && !rest.empty()) {
      const ssize_t count = ::write(fd_.get(), rest.data(), rest.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        error_ = errno;
      } else {
        rest.remove_prefix(static_cast<std::size_t>(count));
      }
    }
    gathered_.clear();
    written_at_ = Clock::now();
  }

  std::filesystem::path path_;
  UniqueFd fd_;
  std::string gathered_;
  Clock::time_point written_at_;
  int error_ = 0;
};

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder)
    : file_(std::make_unique<File>(folder)) {}

TensorBoardWriter::~TensorBoardWriter() = default;
TensorBoardWriter::TensorBoardWriter(TensorBoardWriter&&) noexcept = default;
TensorBoardWriter& TensorBoardWriter::operator=(TensorBoardWriter&&) noexcept = default;

void TensorBoardWriter::add_scalar(std::string_view tag, double value, std::int64_t step) {
  EventMessage message;
  message.bytes(fields::kValueTag, as_utf8(tag))
      .single(fields::kValueSimple, static_cast<float>(value));
  file_->add(message, step);
}

void TensorBoardWriter::add_histogram(std::string_view tag, const at::Tensor& values,
                                      std::int64_t step) {
  if (!values.defined() || values.numel() == 0 || values.is_complex()) {
    throw UsageError(fmt::format(
        "add_histogram(\"{}\"): the tensor is undefined, empty or complex; give real numbers",
        as_utf8(tag)));
  }
  const at::Tensor all = all_elements(values);
  const at::Tensor elements = all.masked_select(all.isfinite());
  if (const std::int64_t left_out = all.numel() - elements.numel(); left_out > 0) {
    static std::atomic_flag warned;
    libtorch::warn_once(
        warned, "TensorBoardWriter::add_histogram",
        fmt::format("add_histogram(\"{}\"), step {}: {} of {} elements are infinite or NaN; "
                    "histograms leave such elements out",
                    as_utf8(tag), step, left_out, all.numel()));
  }
  if (elements.numel() == 0) return;
  EventMessage message;
  message.bytes(fields::kValueTag, as_utf8(tag))
      .message(fields::kValueHistogram, histogram_of(elements));
  file_->add(message, step);
}

void TensorBoardWriter::add_text(std::string_view tag, std::string_view text, std::int64_t step) {
  EventMessage plugin;
  plugin.bytes(fields::kPluginName, "text");
  EventMessage metadata;
  metadata.message(fields::kMetadataPlugin, plugin);
  EventMessage dimension;
  dimension.integer(fields::kDimensionSize, 1);
  EventMessage shape;
  shape.message(fields::kShapeDimension, dimension);
  EventMessage tensor;
  tensor.integer(fields::kTensorType, kStringType)
      .message(fields::kTensorShape, shape)
      .bytes(fields::kTensorStrings, as_utf8(text));
  EventMessage message;
  message.bytes(fields::kValueTag, as_utf8(tag))
      .message(fields::kValueTensor, tensor)
      .message(fields::kValueMetadata, metadata);
  file_->add(message, step);
}

void TensorBoardWriter::purge(std::int64_t step) {
  EventMessage session;
  session.integer(fields::kSessionStatus, kSessionStart);
  file_->add_event(step, fields::kEventSession, session);
}

void TensorBoardWriter::flush() {
  file_->write();
}

std::string TensorBoardWriter::error() const {
  return file_->fault();
}

const std::filesystem::path& TensorBoardWriter::file() const {
  return file_->path();
}

}  // namespace lockstep
