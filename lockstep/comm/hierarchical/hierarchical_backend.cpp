// SPDX-License-Identifier: BSD-3-Clause
// Carries out all-reduce, broadcast, all-gather and reduce-scatter in phases, and delegates all
// other calls.
#include <algorithm>

#include <ATen/ops/empty.h>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/hierarchical/failures.h"
#include "lockstep/comm/hierarchical/hierarchical_operation.h"
#include "lockstep/comm/hierarchical/hierarchy_levels.h"
#include "lockstep/comm/hierarchical/parts_of_ranks.h"
#include "lockstep/comm/hierarchical/phases.h"
#include "lockstep/core/error.h"

namespace lockstep::hierarchical {
namespace {

// Tensors up to this size go as one slice.
constexpr std::int64_t kOneSliceBytes = 64 * 1024;

// Part `number` of `parts` equal ones, as a flat view.
at::Tensor part(const at::Tensor& flat, int number, int parts) {
  const std::int64_t begin = flat.numel() * number / parts;
  const std::int64_t end = flat.numel() * (number + 1) / parts;
  return flat.narrow(0, begin, end - begin);
}

// The type in which a compressed all-reduce sends a tensor. Half types, which are summed as floats
// within a host, keep their own: the other one has less range or fewer digits.
at::ScalarType type_between_hosts(at::ScalarType wire_type, at::ScalarType type) {
  const bool half = type == at::kHalf || type == at::kBFloat16;
  return wire_type != at::ScalarType::Undefined && half ? type : wire_type;
}

class HierarchicalBackend final : public Backend {
 public:
  HierarchicalBackend(Membership membership, GroupOptions options, std::string host,
                      HierarchyLevels levels)
      : membership_(std::move(membership)),
        rank_(membership_.rank),
        size_(membership_.world_size),
        options_(std::move(options)),
        host_(std::move(host)),
        levels_(std::make_shared<HierarchyLevels>(std::move(levels))),
        calls_(std::make_shared<PhasedCalls>([levels = levels_](const std::exception_ptr& error) {
          end_groups_if_calls_differ(*levels, error);
        })) {
    share_progress(calls_);
  }

  std::string_view name() const override { return "hierarchical"; }

  // Messages concern two ranks only, so the group of all ranks carries them out.
  Work start(const CollectiveArgs& args) override {
    if (is_message(args.call.collective)) return levels_->all->start(args);
    if (args.moves_nothing()) return delegate(args);
    switch (args.call.collective) {
      case Collective::all_reduce:
        return all_reduce(args);
      case Collective::broadcast:
        return broadcast(args);
      case Collective::all_gather:
        return has_phases(args) ? in_parts(args, gather_parts) : delegate(args);
      case Collective::reduce_scatter:
        return has_phases(args) ? in_parts(args, reduce_parts) : delegate(args);
      default:
        return delegate(args);
    }
  }

  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    start({.call = {.collective = Collective::empty,
                    .type = c10::typeMetaToScalarType(options.dtype()),
                    .elements = c10::multiply_integers(sizes)}})
        .wait();
    // A tensor that is not on the CPU passes through host memory anyway.
    if (!options.device().is_cpu()) return levels_->all->empty(sizes, options);
    at::Tensor tensor;
    std::string refusal;
    try {
      tensor = levels_->reducing->empty(sizes, options);
    } catch (const BackendError& error) {
      refusal = error.details().cause;
    }
    // Other hosts may have no memory for it.
    const at::Tensor granted = at::empty({1}, at::kInt).fill_(refusal.empty() ? 1 : 0);
    levels_->all
        ->start({.call = {.collective = Collective::all_reduce, .op = ReduceOp::min},
                 .outputs = granted})
        .wait();
    const ErrorContext context{
        .component = std::string(name()), .operation = "empty", .rank = rank_, .size = size_};
    if (!refusal.empty()) throw BackendError(context, refusal);
    if (granted.item<int>() == 0) throw lacks_memory(context, "another host");
    return tensor;
  }

  std::vector<std::vector<int>> hosts() const override { return levels_->hosts; }

  std::shared_ptr<Backend> split(const std::string& name, Membership membership) override {
    if (membership.world_size == 1) return make_self_backend(membership, options_);
    if (is_on_this_host(membership)) return make_shm_backend(membership, options_);
    auto all = levels_->all->split(name, membership);
    auto levels = hierarchical::join_levels(membership, options_, host_, std::move(all));
    return std::make_shared<hierarchical::HierarchicalBackend>(std::move(membership), options_,
                                                               host_, std::move(levels));
  }

  void abort(const std::string& reason) override { end_groups(*levels_, reason); }
  void leave_failing(const std::string& reason) override { leave_groups_failing(*levels_, reason); }

 private:
  // Whether all ranks of a part of this group are on the host of this rank.
  bool is_on_this_host(const Membership& part) const {
    return std::ranges::all_of(part.job_ranks, [this](int job_rank) {
      return std::ranges::any_of(levels_->ranks_of_host(),
                                 [&](int rank) { return membership_.job_rank(rank) == job_rank; });
    });
  }

  // `made`: as the program has made the call.
  std::shared_ptr<HierarchicalOperation> make_operation(const Call& made) {
    const Call call{.collective = made.collective, .origin = made.origin, .number = ++numbers_};
    return std::make_shared<HierarchicalOperation>(
        levels_, calls_, context_of(name(), call, rank_, size_), options_.timeout);
  }

  // Makes the ranks compare a call. The ranks of one host do so before anything else. The first
  // ranks of the hosts do so right after that (compare_here), or in what they do between hosts
  // anyway (compare_later).
  enum class BetweenHosts { compare_here, compare_later };
  Call announce(HierarchicalOperation& operation, const Call& call, std::size_t tensors,
                BetweenHosts between_hosts) const {
    const Call announced = operation.next(call, tensors);
    operation.start({[levels = levels_, announced] {
                       return within_host_part(*levels, announced, [&] {
                         return levels->reducing->start({.call = announced});
                       });
                     },
                     [levels = levels_, announced, between_hosts] {
                       if (between_hosts == BetweenHosts::compare_later || levels->index != 0 ||
                           !levels->between_hosts->compares_calls()) {
                         return std::vector<Work>();
                       }
                       return between_hosts_part(*levels, announced, [&] {
                         return levels->between_hosts->start({.call = announced});
                       });
                     },
                     [] { return std::vector<Work>(); }});
    return announced;
  }

  // A tensor without elements has no stage between hosts in which calls could be compared.
  static BetweenHosts between_hosts_of(const at::Tensor& tensor) {
    return tensor.numel() == 0 ? BetweenHosts::compare_here : BetweenHosts::compare_later;
  }

  // Calls the function for each piece of the tensor, with the number of its slices.
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

  // The phase between hosts: each rank that has a slice starts `inner` on it, as a part of this
  // call.
  static PhasedCall::Phase between_hosts(const std::shared_ptr<HierarchyLevels>& levels,
                                         const Call& call, const at::Tensor& piece, int slices,
                                         const Call& inner,
                                         at::ScalarType wire_type = at::ScalarType::Undefined) {
    return [=] {
      if (levels->index >= slices) return std::vector<Work>();
      return between_hosts_part(*levels, call, [&] {
        return levels->between_hosts->start({.call = inner,
                                             .outputs = part(piece, levels->index, slices),
                                             .wire_type = wire_type,
                                             .part_of = &call});
      });
    };
  }

  // The owner of each slice broadcasts it within its host.
  static PhasedCall::Phase share(const std::shared_ptr<HierarchyLevels>& levels,
                                 const at::Tensor& piece, int slices) {
    return [=] {
      std::vector<Work> works;
      for (int slice = 0; slice < slices; ++slice) {
        works.push_back(
            levels->sharing->start({.call = {.collective = Collective::broadcast, .root = slice},
                                    .outputs = part(piece, slice, slices)}));
      }
      return works;
    };
  }

  // On root's host, ranks that have the result already wait until the hosts have compared the call.
  static PhasedCall::Phase barrier_within_host(const std::shared_ptr<HierarchyLevels>& levels,
                                               const Call& call) {
    return [=] { return works_of(levels->sharing->start({.call = call})); };
  }

  Work all_reduce(const CollectiveArgs& args) {
    auto operation = make_operation(args.call);
    Call within{.collective = Collective::reduce, .op = args.call.op};
    if (within.op == ReduceOp::mean) within.op = ReduceOp::sum;
    const Call between{.collective = Collective::all_reduce,
                       .op = within.op,
                       .scale = scale_over(size_, args.call.op, args.call.scale)};
    for (std::size_t i = 0; i < args.outputs.size(); ++i) {
      const at::Tensor& tensor = args.outputs[i];
      Call compared = args.call_of_output(i);
      if (args.wire_type != at::ScalarType::Undefined) compared.type = args.wire_type;
      const Call call =
          announce(*operation, compared, args.outputs.size(), between_hosts_of(tensor));
      const at::ScalarType sent = type_between_hosts(args.wire_type, tensor.scalar_type());
      for_pieces(operation->flat_sum(tensor), [&](const at::Tensor& piece, int slices) {
        operation->start({[levels = levels_, piece, slices, within] {
                            std::vector<Work> works;
                            for (int slice = 0; slice < slices; ++slice) {
                              Call to_owner = within;
                              to_owner.root = slice;
                              works.push_back(levels->reducing->start(
                                  {.call = to_owner, .outputs = part(piece, slice, slices)}));
                            }
                            return works;
                          },
                          between_hosts(levels_, call, piece, slices, between, sent),
                          share(levels_, piece, slices)});
      });
    }
    return Work(std::move(operation));
  }

  Work broadcast(const CollectiveArgs& args) {
    auto operation = make_operation(args.call);
    const int root = args.call.root;
    const auto has_root = [root](const std::vector<int>& ranks) {
      return std::ranges::find(ranks, root) != ranks.end();
    };
    const auto host = std::ranges::find_if(levels_->hosts, has_root);
    const int roots_host = static_cast<int>(host - levels_->hosts.begin());
    const int roots_index = static_cast<int>(std::ranges::find(*host, root) - host->begin());
    const bool at_roots_host = levels_->host == roots_host;
    const Call within{.collective = Collective::broadcast, .root = roots_index};
    const Call between{.collective = Collective::broadcast, .root = roots_host};
    for (std::size_t i = 0; i < args.outputs.size(); ++i) {
      const at::Tensor& tensor = args.outputs[i];
      const Call call = announce(*operation, args.call_of_output(i), args.outputs.size(),
                                 between_hosts_of(tensor));
      for_pieces(operation->flat_output(tensor), [&](const at::Tensor& piece, int slices) {
        operation->start(
            {[levels = levels_, piece, at_roots_host, within] {
               std::vector<Work> works;
               if (at_roots_host) {
                 works.push_back(levels->reducing->start({.call = within, .outputs = piece}));
               }
               return works;
             },
             between_hosts(levels_, call, piece, slices, between),
             at_roots_host ? barrier_within_host(levels_, call) : share(levels_, piece, slices)});
      });
    }
    return Work(std::move(operation));
  }

  // All-gather and reduce-scatter. Without elements, they have no stage between hosts.
  bool has_phases(const CollectiveArgs& args) const {
    return levels_->hosts_are_alike() && args.call.elements > 0;
  }
  Work in_parts(const CollectiveArgs& args, decltype(gather_parts)& start_phases) {
    auto operation = make_operation(args.call);
    const Call call = announce(*operation, args.call, 1, BetweenHosts::compare_later);
    start_phases(*operation, levels_, call, args);
    return Work(std::move(operation));
  }

  // The group of all ranks carries out the other collectives. It compares calls too, but does not
  // notice a rank whose call does not use this group.
  Work delegate(const CollectiveArgs& args) {
    const bool list = args.call.collective == Collective::reduce && !args.moves_nothing();
    auto operation = make_operation(args.call);
    announce(*operation, list ? args.call_of_output(0) : args.call, list ? args.outputs.size() : 1,
             BetweenHosts::compare_here);
    operation->delegate(levels_->all->start(args));
    return Work(std::move(operation));
  }

  const Membership membership_;
  const int rank_;
  const int size_;
  const GroupOptions options_;
  const std::string host_;
  std::shared_ptr<HierarchyLevels> levels_;
  std::shared_ptr<PhasedCalls> calls_;
  std::atomic<std::uint64_t> numbers_ = 0;
};

}  // namespace
}  // namespace lockstep::hierarchical

namespace lockstep {

std::shared_ptr<Backend> make_hierarchical_backend(const Membership& membership,
                                                   const GroupOptions& options,
                                                   const std::string& host, JoinHosts join_hosts) {
  auto all = join_hosts(membership, options, "hierarchical");
  auto levels = hierarchical::join_levels(membership, options, host, std::move(all));
  return std::make_shared<hierarchical::HierarchicalBackend>(membership, options, host,
                                                             std::move(levels));
}

}  // namespace lockstep
