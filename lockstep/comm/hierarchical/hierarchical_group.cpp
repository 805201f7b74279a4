// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/hierarchical/hierarchical_group.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "lockstep/comm/core/calls_differ.h"
#include "lockstep/comm/hierarchical/hierarchical_operation.h"
#include "lockstep/comm/hierarchical/hierarchy_levels.h"
#include "lockstep/comm/hierarchical/part_of_call.h"
#include "lockstep/comm/hierarchical/phases.h"
#include "lockstep/comm/remote/remote_group.h"
#include "lockstep/comm/remote/schedules.h"
#include "lockstep/comm/self/self_group.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/prefix_store.h"

namespace lockstep {
namespace {

// Smaller tensors are not worth more than one slice.
constexpr std::int64_t kOneSliceBytes = 64 * 1024;
// Larger ones go in pieces, so that the phases of one overlap with those of the next.
constexpr std::int64_t kPieceBytes = 8 * 1024 * 1024;

// Part `number` of so many, as a flat view.
at::Tensor part(const at::Tensor& flat, int number, int parts) {
  const std::int64_t begin = flat.numel() * number / parts;
  const std::int64_t end = flat.numel() * (number + 1) / parts;
  return flat.narrow(0, begin, end - begin);
}

// Tells the ranks that are in another group's call and so do not see the difference.
void tell_all(HierarchyLevels& levels, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const CallsDiffer& differ) {
    end_groups_for_mismatch(
        levels, describe_difference(fmt::format("rank {}", levels.all->rank()), differ.own(),
                                    fmt::format("rank {}", differ.peer()), differ.peers_call()));
  } catch (const std::exception&) {
    // Other errors are explained by the call that waits.
  }
}

}  // namespace

class HierarchicalGroup final : public ProcessGroup {
 public:
  HierarchicalGroup(Membership membership, GroupOptions options, std::string host,
                    HierarchyLevels levels)
      : ProcessGroup(std::move(membership), std::move(options)),
        host_(std::move(host)),
        levels_(std::make_shared<HierarchyLevels>(std::move(levels))),
        calls_(std::make_shared<PhasedCalls>(
            [levels = levels_](const std::exception_ptr& error) { tell_all(*levels, error); })) {
    share_progress(calls_);
  }
  ~HierarchicalGroup() override { leave_if_failing(); }

  std::string_view backend() const override { return "hierarchical"; }

  at::Tensor make_empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    start_barrier({.collective = Collective::empty,
                   .type = c10::typeMetaToScalarType(options.dtype()),
                   .elements = c10::multiply_integers(sizes)})
        .wait();
    // What is not on CPU passes through host memory anyway.
    if (!options.device().is_cpu()) return levels_->all->empty(sizes, options);
    at::Tensor tensor;
    std::string refusal;
    try {
      tensor = levels_->reducing->empty(sizes, options);
    } catch (const BackendError& error) {
      refusal = error.what();
    }
    // Other hosts may have no memory for it.
    const at::Tensor granted = at::empty({1}, at::kInt).fill_(refusal.empty() ? 1 : 0);
    levels_->all->all_reduce(granted, {.op = ReduceOp::min}).wait();
    if (!refusal.empty()) throw BackendError(where("empty") + refusal);
    if (granted.item<int>() == 0) {
      throw BackendError(where("empty") +
                         "another host found no memory for it; its own error has the figures");
    }
    return tensor;
  }

  void abort(const std::string& reason) override { end_groups(*levels_, reason); }

 private:
  // The group of all ranks first, since the others look there for the cause.
  void leave_failing(const std::string& reason) override {
    levels_->all->leave_failing(reason);
    if (levels_->between_hosts) levels_->between_hosts->leave_failing(reason);
    levels_->reducing->leave_failing(reason);
    levels_->sharing->leave_failing(reason);
  }

  std::shared_ptr<HierarchicalOperation> make_operation(Collective collective) {
    const Call call{.collective = collective, .number = ++numbers_};
    return std::make_shared<HierarchicalOperation>(
        levels_, calls_,
        fmt::format("[{}] {}, rank {} of {}: ", backend(), title(call), rank(), size()),
        call.number, timeout());
  }

  // Has the ranks compare a call. The ranks of one host do so before anything else; the first ranks
  // of the hosts do so right after that (compare_here), or in what they do between hosts anyway
  // (compare_later).
  enum class BetweenHosts { compare_here, compare_later };
  Call announce(HierarchicalOperation& operation, const Call& call, std::size_t tensors,
                BetweenHosts between_hosts) const {
    const Call announced = operation.next(call, tensors);
    operation.start(
        {[levels = levels_, announced] {
           return within_host(*levels, announced,
                              [&] { return levels->reducing->start_barrier(announced); });
         },
         [levels = levels_, announced, between_hosts] {
           if (between_hosts == BetweenHosts::compare_later || levels->reducing->rank() != 0 ||
               !remote::compares_calls(*levels->between_hosts)) {
             return std::vector<Work>();
           }
           return between_hosts_part(
               *levels, announced, [&] { return levels->between_hosts->start_barrier(announced); });
         },
         [] { return std::vector<Work>(); }});
    return announced;
  }
  static std::vector<Work> within_host(const HierarchyLevels& levels, const Call& call,
                                       const std::function<Work()>& start) {
    return one(part_of_call(start, levels.all->timeout(), levels.ranks_of_host(), call));
  }
  static std::vector<Work> between_hosts_part(const HierarchyLevels& levels, const Call& call,
                                              const std::function<Work()>& start) {
    return one(part_of_call(start, levels.all->timeout(), levels.ranks_between_hosts(), call));
  }
  static std::vector<Work> one(Work work) {
    std::vector<Work> works;
    works.push_back(std::move(work));
    return works;
  }

  // A tensor without elements brings no stage between hosts in which calls could be compared.
  static BetweenHosts between_hosts_of(const at::Tensor& tensor) {
    return tensor.numel() == 0 ? BetweenHosts::compare_here : BetweenHosts::compare_later;
  }

  // Calls the function for each piece of the tensor, with the number of slices for it.
  template <class Function>
  void for_pieces(const at::Tensor& flat, const Function& function) const {
    const std::int64_t per_piece =
        std::max<std::int64_t>(1, kPieceBytes / static_cast<std::int64_t>(flat.element_size()));
    for (std::int64_t begin = 0; begin < flat.numel(); begin += per_piece) {
      const at::Tensor piece = flat.narrow(0, begin, std::min(per_piece, flat.numel() - begin));
      const bool small = static_cast<std::int64_t>(piece.nbytes()) <= kOneSliceBytes;
      function(piece, small ? 1 : levels_->slices);
    }
  }

  // What each rank at the front of its host does with its own slice, as a part of this call.
  static PhasedCall::Phase between_hosts(
      const std::shared_ptr<HierarchyLevels>& levels, const Call& call, const at::Tensor& piece,
      int slices, const std::function<Work(ProcessGroup&, const at::Tensor&)>& function) {
    return [=] {
      const int slice = levels->reducing->rank();
      if (slice >= slices) return std::vector<Work>();
      return between_hosts_part(*levels, call, [&] {
        return remote::start_part_of(call, *levels->between_hosts, [&] {
          return function(*levels->between_hosts, part(piece, slice, slices));
        });
      });
    };
  }

  // The owner of each slice gives it to its host.
  static PhasedCall::Phase share(const std::shared_ptr<HierarchyLevels>& levels,
                                 const at::Tensor& piece, int slices) {
    return [=] {
      std::vector<Work> works;
      for (int slice = 0; slice < slices; ++slice) {
        works.push_back(levels->sharing->broadcast(part(piece, slice, slices), slice));
      }
      return works;
    };
  }

  // Ranks of a host that have the result already wait until the comparison between the hosts is
  // done.
  static PhasedCall::Phase barrier_within_host(const std::shared_ptr<HierarchyLevels>& levels,
                                               const Call& call) {
    return [=] { return one(levels->sharing->start_barrier(call)); };
  }

  Work start_all_reduce(at::TensorList tensors, AllReduceOptions options) override {
    auto operation = make_operation(Collective::all_reduce);
    const AllReduceOptions within{.op = options.op == ReduceOp::mean ? ReduceOp::sum : options.op};
    const AllReduceOptions between{.op = within.op,
                                   .scale = scale_over(size(), options.op, options.scale)};
    for (const auto& tensor : tensors) {
      const Call call =
          announce(*operation, remote::reducing_call(Collective::all_reduce, tensor, options),
                   tensors.size(), between_hosts_of(tensor));
      for_pieces(operation->flat_sum(tensor), [&](const at::Tensor& piece, int slices) {
        operation->start({[levels = levels_, piece, slices, within] {
                            std::vector<Work> works;
                            for (int slice = 0; slice < slices; ++slice) {
                              works.push_back(levels->reducing->reduce(part(piece, slice, slices),
                                                                       slice, within));
                            }
                            return works;
                          },
                          between_hosts(levels_, call, piece, slices,
                                        [between](ProcessGroup& group, const at::Tensor& slice) {
                                          return group.all_reduce(slice, between);
                                        }),
                          share(levels_, piece, slices)});
      });
    }
    return Work(std::move(operation));
  }

  Work start_broadcast(at::TensorList tensors, int root) override {
    auto operation = make_operation(Collective::broadcast);
    const auto has_root = [root](const std::vector<int>& ranks) {
      return std::ranges::find(ranks, root) != ranks.end();
    };
    const auto host = std::ranges::find_if(levels_->hosts, has_root);
    const int roots_host = static_cast<int>(host - levels_->hosts.begin());
    const int roots_place = static_cast<int>(std::ranges::find(*host, root) - host->begin());
    const bool at_roots_host = levels_->host == roots_host;
    for (const auto& tensor : tensors) {
      const Call call =
          announce(*operation, remote::plain_call(Collective::broadcast, tensor, root),
                   tensors.size(), between_hosts_of(tensor));
      for_pieces(operation->flat_output(tensor), [&](const at::Tensor& piece, int slices) {
        operation->start(
            {[levels = levels_, piece, at_roots_host, roots_place] {
               std::vector<Work> works;
               if (at_roots_host) {
                 works.push_back(levels->reducing->broadcast(piece, roots_place));
               }
               return works;
             },
             between_hosts(levels_, call, piece, slices,
                           [roots_host](ProcessGroup& group, const at::Tensor& slice) {
                             return group.broadcast(slice, roots_host);
                           }),
             at_roots_host ? barrier_within_host(levels_, call) : share(levels_, piece, slices)});
      });
    }
    return Work(std::move(operation));
  }

  // The group of all ranks carries out the other collectives. It compares calls too, but knows
  // nothing of a rank whose call does not use this group.
  template <class Function>
  Work delegate(const Call& call, std::size_t tensors, const Function& start) {
    auto operation = make_operation(call.collective);
    announce(*operation, call, tensors, BetweenHosts::compare_here);
    operation->delegate(start(*levels_->all));
    return Work(std::move(operation));
  }

  Work start_barrier(const Call& call) override {
    return delegate(call, 1, [&](ProcessGroup& all) { return all.start_barrier(call); });
  }
  Work start_reduce(at::TensorList tensors, int root, AllReduceOptions options) override {
    Call call = remote::reducing_call(Collective::reduce, tensors.front(), options);
    call.root = root;
    return delegate(call, tensors.size(),
                    [&](ProcessGroup& all) { return all.start_reduce(tensors, root, options); });
  }
  Work start_all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    return delegate(remote::plain_call(Collective::all_gather, input), 1, [&](ProcessGroup& all) {
      return all.start_all_gather(std::move(outputs), std::move(input));
    });
  }
  Work start_gather(std::vector<at::Tensor> outputs, at::Tensor input, int root) override {
    const Call call = remote::plain_call(Collective::gather, input, root);
    return delegate(call, 1, [&](ProcessGroup& all) {
      return all.start_gather(std::move(outputs), std::move(input), root);
    });
  }
  Work start_scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root) override {
    const Call call = remote::plain_call(Collective::scatter, output, root);
    return delegate(call, 1, [&](ProcessGroup& all) {
      return all.start_scatter(std::move(output), std::move(inputs), root);
    });
  }
  Work start_reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs,
                            AllReduceOptions options) override {
    const Call call = remote::reducing_call(Collective::reduce_scatter, output, options);
    return delegate(call, 1, [&](ProcessGroup& all) {
      return all.start_reduce_scatter(std::move(output), std::move(inputs), options);
    });
  }
  Work start_all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    return delegate({.collective = Collective::all_to_all}, 1, [&](ProcessGroup& all) {
      return all.start_all_to_all(std::move(outputs), std::move(inputs));
    });
  }
  // These concern two ranks only.
  Work start_send(at::Tensor tensor, int to, Tag tag) override {
    return levels_->all->start_send(std::move(tensor), to, tag);
  }
  Work start_recv(at::Tensor tensor, int from, Tag tag) override {
    return levels_->all->start_recv(std::move(tensor), from, tag);
  }
  std::shared_ptr<ProcessGroup> make_subgroup(const std::string& name,
                                              Membership membership) override {
    const GroupOptions options{.timeout = timeout(), .device = device()};
    if (membership.world_size == 1) return make_self_group(std::move(membership), options);
    auto all = levels_->all->make_subgroup(name, membership);
    membership.store = std::make_shared<PrefixStore>(name + "/", std::move(membership.store));
    auto levels = join_levels(membership, options, host_, std::move(all));
    return std::make_shared<HierarchicalGroup>(std::move(membership), options, host_,
                                               std::move(levels));
  }

  const std::string host_;
  std::shared_ptr<HierarchyLevels> levels_;
  std::shared_ptr<PhasedCalls> calls_;
  std::atomic<std::uint64_t> numbers_ = 0;
};

std::shared_ptr<ProcessGroup> make_hierarchical_group(Membership membership, GroupOptions options,
                                                      const std::string& host,
                                                      const MakeGroupBetweenHosts& between_hosts) {
  auto all = between_hosts(membership, options, "hierarchical");
  auto levels = join_levels(membership, options, host, std::move(all));
  return std::make_shared<HierarchicalGroup>(std::move(membership), std::move(options), host,
                                             std::move(levels));
}

}  // namespace lockstep
