// SPDX-License-Identifier: BSD-3-Clause
// Starts NCCL's collectives and messages, each on the stream of a communicator.
#include "lockstep/comm/nccl/nccl_transport.h"

#include <map>
#include <optional>
#include <thread>
#include <tuple>

#include <ATen/ops/empty_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "lockstep/comm/nccl/nccl_communicator.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::nccl {
namespace {

using namespace std::chrono_literals;

// NCCL does not announce the end of its work, so a waiting thread polls this often.
constexpr auto kPollInterval = 20us;

// To NCCL, bools are bytes of 0 and 1.
std::optional<ncclDataType_t> find_type(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return ncclInt8;
    case at::kByte:
    case at::kBool:
      return ncclUint8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kHalf:
      return ncclFloat16;
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kBFloat16:
      return ncclBfloat16;
    default:
      return std::nullopt;
  }
}

// Elements as NCCL counts them: a complex one is a pair of real ones.
std::size_t elements_in(const at::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel()) * (tensor.is_complex() ? 2 : 1);
}

// How NCCL combines the ranks' elements. A scale takes an NCCL operator, which is made here and
// destroyed with this object.
class Reduction {
 public:
  Reduction(const NcclLibrary& nccl, ncclComm_t communicator, at::ScalarType of, ReduceOp op,
            double scale, int size)
      : nccl_(nccl), communicator_(communicator), type_(*find_type(c10::toRealValueType(of))) {
    const at::ScalarType type = c10::toRealValueType(of);
    if (scale != 1) {
      result_ = scaled(type, scale_over(size, op, scale));
    } else if (type == at::kBool) {  // "or" and "and"
      op_ = op == ReduceOp::min || op == ReduceOp::product ? ncclMin : ncclMax;
    } else if (op == ReduceOp::mean) {
      op_ = ncclAvg;
    } else if (op == ReduceOp::min) {
      op_ = ncclMin;
    } else if (op == ReduceOp::max) {
      op_ = ncclMax;
    } else if (op == ReduceOp::product) {
      op_ = ncclProd;
    }
  }
  ~Reduction() {
    if (made_) nccl_.destroy_op(op_, communicator_);
  }
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  ncclResult_t result() const { return result_; }
  ncclDataType_t type() const { return type_; }
  ncclRedOp_t op() const { return op_; }

 private:
  ncclResult_t scaled(at::ScalarType type, double scale) {
    if (type == at::kDouble) return make(scale);
    if (type == at::kFloat) return make(static_cast<float>(scale));
    if (type == at::kHalf) return make(at::Half(static_cast<float>(scale)));
    return make(at::BFloat16(static_cast<float>(scale)));
  }
  template <class Scalar>
  ncclResult_t make(Scalar scale) {
    const ncclResult_t result =
        nccl_.create_scaled_sum(&op_, &scale, type_, ncclScalarHostImmediate, communicator_);
    made_ = result == ncclSuccess;
    return result;
  }

  const NcclLibrary& nccl_;
  ncclComm_t communicator_;
  ncclDataType_t type_;
  ncclRedOp_t op_ = ncclSum;
  ncclResult_t result_ = ncclSuccess;
  bool made_ = false;
};

std::byte* begin(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

bool is_any(const at::Tensor& tensor) {
  return tensor.defined() && tensor.nbytes() > 0;
}

// PyTorch's variable for the mode in which a wait blocks the thread and throws errors.
bool waits_block() {
  static const bool block = environment("TORCH_NCCL_BLOCKING_WAIT").value_or("0") == "1";
  return block;
}

// NCCL's work under way, and the tensors that it uses.
class NcclTransmission final : public remote::Transmission {
 public:
  NcclTransmission(NcclCommunicator& communicator,
                   std::shared_ptr<NcclCommunicator::Operation> operation,
                   std::vector<at::Tensor> tensors)
      : communicator_(communicator),
        operation_(std::move(operation)),
        tensors_(std::move(tensors)) {}

  // The device tensor stands in for the host tensor, which gets the result on the stream `copies`.
  void copy_to_host(at::Tensor host, at::Tensor device, c10::Stream copies) {
    to_host_ = ToHost{std::move(host), std::move(device), copies};
  }

  bool done() override {
    communicator_.advance();
    if (!operation_->done()) return false;
    if (to_host_) {
      const c10::StreamGuard guard(to_host_->copies);
      to_host_->host.copy_(to_host_->device);
      to_host_.reset();
    }
    return true;
  }

  bool order_current_stream() override {
    if (waits_block()) return false;
    communicator_.advance();
    if (!operation_->launched() || to_host_) return false;
    const c10::Stream& own = communicator_.stream();
    operation_->end()->block(
        c10::impl::VirtualGuardImpl(own.device_type()).getStream(own.device()));
    return true;
  }

 private:
  NcclCommunicator& communicator_;
  std::shared_ptr<NcclCommunicator::Operation> operation_;
  std::vector<at::Tensor> tensors_;
  struct ToHost {
    at::Tensor host;
    at::Tensor device;
    c10::Stream copies;
  };
  std::optional<ToHost> to_host_;
};

class StreamTransport final : public NcclTransport {
 public:
  StreamTransport(const Membership& membership, at::Device device,
                  std::chrono::milliseconds timeout)
      : store_(membership.store),
        rank_(membership.rank),
        size_(membership.world_size),
        device_(device),
        timeout_(timeout),
        copies_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, false)),
        collectives_(store_, "nccl/collectives", rank_, size_, device, timeout) {}

  void rendezvous(remote::Joining& joining, const Deadline& deadline) {
    while (!collectives_.ready()) {
      collectives_.advance();
      joining.check();
      if (deadline.passed()) {
        throw TimeoutError(fmt::format("NCCL did not connect the ranks within {:.1f} s",
                                       deadline.span().count() / 1000.0));
      }
      std::this_thread::sleep_for(1ms);
    }
  }

  std::shared_ptr<void> mark() override { return mark_of_current_stream(device_); }
  void begin_after(const std::shared_ptr<void>& mark) override {
    after_ = std::static_pointer_cast<c10::Event>(mark);
  }
  void abort() override {
    collectives_.abort();
    for (auto& [key, communicator] : messages_) communicator->abort();
  }

  std::unique_ptr<Transmission> all_reduce(at::Tensor tensor, ReduceOp op, double scale) override {
    if (size_ == 1) return reduce_alone(tensor, tensor, scale);
    return launch({tensor}, [=, size = size_](const NcclLibrary& nccl, ncclComm_t communicator,
                                              cudaStream_t stream) {
      const Reduction by(nccl, communicator, tensor.scalar_type(), op, scale, size);
      if (by.result() != ncclSuccess) return by.result();
      return nccl.all_reduce(begin(tensor), begin(tensor), elements_in(tensor), by.type(), by.op(),
                             communicator, stream);
    });
  }

  std::unique_ptr<Transmission> reduce(at::Tensor tensor, int root, ReduceOp op,
                                       double scale) override {
    if (size_ == 1) return reduce_alone(tensor, tensor, scale);
    return launch({tensor}, [=, size = size_](const NcclLibrary& nccl, ncclComm_t communicator,
                                              cudaStream_t stream) {
      const Reduction by(nccl, communicator, tensor.scalar_type(), op, scale, size);
      if (by.result() != ncclSuccess) return by.result();
      return nccl.reduce(begin(tensor), begin(tensor), elements_in(tensor), by.type(), by.op(),
                         root, communicator, stream);
    });
  }

  std::unique_ptr<Transmission> reduce_scatter(std::vector<at::Tensor> tensors, at::Tensor result,
                                               ReduceOp op, double scale) override {
    if (size_ == 1) return reduce_alone(tensors[0], result, scale);
    std::vector<at::Tensor> used = tensors;
    used.push_back(result);
    return launch(used, [=, size = size_](const NcclLibrary& nccl, ncclComm_t communicator,
                                          cudaStream_t stream) {
      const Reduction by(nccl, communicator, result.scalar_type(), op, scale, size);
      if (by.result() != ncclSuccess) return by.result();
      nccl.group_start();
      for (int root = 0; root < size; ++root) {
        nccl.reduce(begin(tensors[static_cast<std::size_t>(root)]), begin(result),
                    elements_in(result), by.type(), by.op(), root, communicator, stream);
      }
      return nccl.group_end();
    });
  }

  std::unique_ptr<Transmission> exchange_tensors(std::vector<at::Tensor> outgoing,
                                                 std::vector<at::Tensor> incoming) override {
    std::vector<at::Tensor> used = outgoing;
    used.insert(used.end(), incoming.begin(), incoming.end());
    return launch(used, [=](const NcclLibrary& nccl, ncclComm_t communicator, cudaStream_t stream) {
      nccl.group_start();
      for (std::size_t rank = 0; rank < outgoing.size(); ++rank) {
        const at::Tensor& out = outgoing[rank];
        if (!is_any(out)) continue;
        nccl.send(begin(out), out.nbytes(), ncclUint8, static_cast<int>(rank), communicator,
                  stream);
      }
      for (std::size_t rank = 0; rank < incoming.size(); ++rank) {
        const at::Tensor& in = incoming[rank];
        if (!is_any(in)) continue;
        nccl.recv(begin(in), in.nbytes(), ncclUint8, static_cast<int>(rank), communicator, stream);
      }
      return nccl.group_end();
    });
  }

  std::unique_ptr<Transmission> exchange(at::Tensor outgoing,
                                         std::vector<std::int64_t> outgoing_bytes,
                                         at::Tensor incoming,
                                         std::vector<std::int64_t> incoming_bytes) override {
    const at::Tensor out = on_device(outgoing);
    const at::Tensor in = memory_for(incoming);
    return back_to(incoming, in,
                   exchange_tensors(blocks(out, outgoing_bytes), blocks(in, incoming_bytes)));
  }

  std::unique_ptr<Transmission> all_gather(at::Tensor own, at::Tensor all,
                                           std::vector<std::int64_t> bytes) override {
    const at::Tensor out = on_device(own);
    const at::Tensor in = memory_for(all);
    return back_to(
        all, in,
        exchange_tensors(std::vector(static_cast<std::size_t>(size_), out), blocks(in, bytes)));
  }

  std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) override {
    return launch({bytes},
                  [=](const NcclLibrary& nccl, ncclComm_t communicator, cudaStream_t stream) {
                    return nccl.broadcast(begin(bytes), begin(bytes), bytes.nbytes(), ncclUint8,
                                          root, communicator, stream);
                  });
  }

  std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) override {
    NcclCommunicator& line = messages(rank_, to, tag);
    const at::Tensor out = on_device(bytes);
    return launch_on(
        line, {out}, [=](const NcclLibrary& nccl, ncclComm_t communicator, cudaStream_t stream) {
          return nccl.send(begin(out), out.nbytes(), ncclUint8, 1, communicator, stream);
        });
  }

  std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) override {
    NcclCommunicator& line = messages(from, rank_, tag);
    const at::Tensor in = memory_for(bytes);
    return back_to(
        bytes, in,
        launch_on(line, {in},
                  [=](const NcclLibrary& nccl, ncclComm_t communicator, cudaStream_t stream) {
                    return nccl.recv(begin(in), in.nbytes(), ncclUint8, 0, communicator, stream);
                  }));
  }

  std::uint64_t events() const override { return 0; }
  void wait_for_event(std::uint64_t, std::chrono::microseconds at_most) override {
    std::this_thread::sleep_for(std::min<std::chrono::microseconds>(at_most, kPollInterval));
  }

 private:
  std::unique_ptr<NcclTransmission> launch_on(NcclCommunicator& communicator,
                                              std::vector<at::Tensor> tensors, NcclLaunch launch) {
    return std::make_unique<NcclTransmission>(
        communicator, communicator.enqueue(after_, std::move(launch)), std::move(tensors));
  }
  std::unique_ptr<NcclTransmission> launch(std::vector<at::Tensor> tensors, NcclLaunch launch) {
    return launch_on(collectives_, std::move(tensors), std::move(launch));
  }

  // Before version 2.29.7, NCCL leaves out the last elements of some scaled sums of a single rank.
  std::unique_ptr<Transmission> reduce_alone(at::Tensor tensor, at::Tensor result, double scale) {
    return launch({tensor, result}, [=, this](const NcclLibrary&, ncclComm_t, cudaStream_t) {
      const c10::StreamGuard guard(collectives_.stream());
      result.copy_(tensor.view(result.sizes()), true);
      if (scale != 1) result.mul_(scale);
      return ncclSuccess;
    });
  }

  // The communicator of messages from one rank to another. The sender is its rank 0.
  NcclCommunicator& messages(int from, int to, int tag) {
    const std::tuple key(from, to, tag);
    const auto found = messages_.find(key);
    if (found != messages_.end()) return *found->second;
    auto made =
        std::make_unique<NcclCommunicator>(store_, fmt::format("nccl/{}-{}/{}", from, to, tag),
                                           from == rank_ ? 0 : 1, 2, device_, timeout_);
    return *messages_.emplace(key, std::move(made)).first->second;
  }

  at::Tensor on_device(const at::Tensor& tensor) {
    if (tensor.device() == device_) return tensor;
    const c10::StreamGuard guard(copies_);
    at::Tensor copy = tensor.to(device_);
    // NCCL need not wait for the caller's stream.
    after_ = mark_of_current_stream(device_);
    return copy;
  }
  // Memory that was freed on a stream may still be in use there. So this memory comes from the
  // stream of the copies, and NCCL waits for that stream.
  at::Tensor memory_for(const at::Tensor& tensor) {
    if (tensor.device() == device_) return tensor;
    const c10::StreamGuard guard(copies_);
    at::Tensor copy = at::empty_like(tensor, tensor.options().device(device_));
    after_ = mark_of_current_stream(device_);
    return copy;
  }
  std::unique_ptr<Transmission> back_to(const at::Tensor& tensor, const at::Tensor& used,
                                        std::unique_ptr<Transmission> transmission) const {
    if (!used.is_same(tensor)) {
      static_cast<NcclTransmission&>(*transmission).copy_to_host(tensor, used, copies_);
    }
    return transmission;
  }

  static std::vector<at::Tensor> blocks(const at::Tensor& tensor,
                                        const std::vector<std::int64_t>& bytes) {
    std::vector<at::Tensor> result;
    std::int64_t first = 0;
    for (const std::int64_t count : bytes) {
      result.push_back(tensor.narrow(0, first, count));
      first += count;
    }
    return result;
  }

  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  // For copies of host tensors. Nothing on this stream waits for a peer. The current stream and
  // NCCL's may wait for one, and a copy behind that wait would keep this rank from doing what the
  // peer waits for.
  c10::Stream copies_;
  NcclCommunicator collectives_;
  std::map<std::tuple<int, int, int>, std::unique_ptr<NcclCommunicator>> messages_;
  StreamMark after_;
};

}  // namespace

void check_nccl_type(at::ScalarType type) {
  if (find_type(type)) return;
  throw UsageError(
      fmt::format("NCCL does not know the type {}; convert the tensor first", c10::toString(type)));
}

std::unique_ptr<NcclTransport> make_nccl_transport(const Membership& membership, at::Device device,
                                                   remote::Joining& joining,
                                                   const Deadline& deadline) {
  // Communicators for messages, made later, may wait for their peers as long as joining may take.
  auto transport = std::make_unique<StreamTransport>(membership, device, deadline.span());
  transport->rendezvous(joining, deadline);
  return transport;
}

}  // namespace lockstep::nccl
