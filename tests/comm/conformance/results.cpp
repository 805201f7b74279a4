// SPDX-License-Identifier: BSD-3-Clause
// What each collective computes, for every type and size.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "comm/conformance/conformance.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/tensor/piece.h"

namespace lockstep::testing {
namespace {

const std::vector<std::int64_t> kSizes = {0, 1, 7, 1023, 4096, 65537};
const std::vector<ReduceOp> kOps = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max,
                                    ReduceOp::product};

std::string describe(std::string_view operation, at::ScalarType type, std::int64_t count) {
  return fmt::format("{} of {} {}", operation, count, c10::toString(type));
}

// Calls the function for every type with every size.
void for_all(
    Rank& rank, std::string_view operation,
    const std::function<void(at::ScalarType, std::int64_t, const std::string&)>& function) {
  for (const auto type : all_types()) {
    for (const auto count : kSizes) {
      const std::string what = describe(operation, type, count);
      rank.note(what);
      function(type, count, what);
      if (rank.failed()) return;
    }
  }
}

TEST_P(ResultsConformance, AllReduceCombinesInTheOrderOfTheRanks) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    for_all(rank, "all_reduce", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      const auto inputs = inputs_of_all(group.size(), type, {count});
      for (const auto op : kOps) {
        if (op == ReduceOp::mean && !can_be_scaled(type)) continue;
        const at::Tensor tensor = inputs[rank.rank()].clone();
        group.all_reduce(tensor, op).wait();
        expect_reduced(tensor, inputs, {.op = op}, fmt::format("{} {}", name(op), what));
      }
    });
  });
}

TEST_P(ResultsConformance, AllReduceScalesInTheSamePass) {
  if (backend().sums_by_a_library) GTEST_SKIP() << "a library's sums are its own";
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const auto type : all_types()) {
      if (!can_be_scaled(type)) continue;
      for (const auto op : {ReduceOp::sum, ReduceOp::mean}) {
        for (const double scale : {0.5, 1.0 / 3, -7.25, 0.0}) {
          const auto inputs = inputs_of_all(group.size(), type, {4099});
          const at::Tensor tensor = inputs[rank.rank()].clone();
          group.all_reduce(tensor, {.op = op, .scale = scale}).wait();
          expect_same_bits(
              tensor, reduced(inputs, {.op = op, .scale = scale}),
              fmt::format("{} times {}", describe(name(op), type, tensor.numel()), scale));
        }
      }
    }
  });
}

TEST_P(ResultsConformance, AllReduceTakesListsOfTensors) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    const std::vector<std::int64_t> counts = {5, 0, 70001, 1, 3, 300, 4096};
    std::vector<at::Tensor> tensors;
    for (const auto count : counts) tensors.push_back(input_of(rank.rank(), at::kFloat, {count}));
    group.all_reduce(tensors, ReduceOp::mean).wait();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      expect_reduced(tensors[i], inputs_of_all(group.size(), at::kFloat, {counts[i]}),
                     {.op = ReduceOp::mean}, fmt::format("tensor {} of the list", i));
    }
    // Of several types in one call.
    std::vector<at::Tensor> mixed;
    for (const auto type : all_types()) mixed.push_back(input_of(rank.rank(), type, {33}));
    group.all_reduce(mixed, {.op = ReduceOp::max}).wait();
    for (const auto& tensor : mixed) {
      const auto type = tensor.scalar_type();
      expect_same_bits(tensor,
                       reduced(inputs_of_all(group.size(), type, {33}), {.op = ReduceOp::max}),
                       describe("max in a list of all types:", type, 33));
    }
    const at::Tensor tensor = input_of(rank.rank(), at::kFloat, {33});
    group.all_reduce(tensor, {}).wait();
    expect_reduced(tensor, inputs_of_all(group.size(), at::kFloat, {33}), {}, "{} is a sum");
  });
}

TEST_P(ResultsConformance, ManyTensorsInOneCall) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 300; ++i) tensors.push_back(input_of(rank.rank(), at::kFloat, {i % 17}, i));
    group.all_reduce(tensors).wait();
    for (int i = 0; i < 300; ++i) {
      expect_same_bits(tensors[i], reduced(inputs_of_all(group.size(), at::kFloat, {i % 17}, i)),
                       fmt::format("tensor {} of 300", i));
    }
  });
}

// Cut at the range's quarters, every other part of the values; all of them if there is no range.
std::vector<Piece> some_pieces(const at::Tensor& values, ElementRange range) {
  if (range.count == 0) return {{0, values.clone()}};
  std::vector<std::int64_t> cuts = {0};
  for (int quarter = 0; quarter <= 4; ++quarter) {
    cuts.push_back(range.begin + range.count * quarter / 4);
  }
  cuts.push_back(values.numel());
  std::vector<Piece> pieces;
  for (std::size_t i = 1; i + 1 < cuts.size(); i += 2) {
    pieces.push_back({cuts[i], values.slice(0, cuts[i], cuts[i + 1]).clone()});
  }
  return pieces;
}

TEST_P(ResultsConformance, AllReduceTakesPiecesFromElsewhere) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    for (const auto type : {at::kFloat, at::kHalf, at::kByte}) {
      for (const std::int64_t count : {5, 1023, 4099, 300'001}) {
        const std::string what = describe("all_reduce of pieces", type, count);
        rank.note(what);
        const auto inputs = inputs_of_all(group.size(), type, {count});
        const at::Tensor& input = inputs[rank.rank()];
        const at::Tensor shared = group.empty({count}, type);
        const ElementRange share = group.own_share(shared);
        if (backend().shares_memory && shared.nbytes() > 4096) {
          EXPECT_GT(share.count, 0) << what;
        }
        const ElementRange middle{count / 3, count / 3};
        const ElementRange across{share.begin / 2, share.count};
        for (const ElementRange range : {ElementRange{}, share, middle, across}) {
          for (const bool all_shared : {true, false}) {
            const at::Tensor tensor =
                all_shared || rank.rank() == 0 ? shared : at::empty({count}, type);
            tensor.copy_(input);
            auto pieces = some_pieces(input, range);
            for (const Piece& piece : pieces) {
              tensor.narrow(0, piece.begin, piece.values.numel()).fill_(77);
            }
            std::ranges::reverse(pieces);  // any order will do
            group.all_reduce_pieces(tensor, pieces).wait();
            expect_reduced(tensor.cpu(), inputs, {}, what);
          }
        }
        if (rank.failed()) return;
      }
    }
  });
}

TEST_P(ResultsConformance, NotANumberIsSeenByAllRanks) {
  if (backend().sums_by_a_library) GTEST_SKIP() << "a library's sums are its own";
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const auto op : kOps) {
        const at::Tensor tensor = at::ones({4096}, type);
        // Each rank has one at a place of its own.
        tensor[rank.rank()] = std::numeric_limits<double>::quiet_NaN();
        group.all_reduce(tensor, {.op = op}).wait();
        const std::string what = describe(name(op), type, tensor.numel());
        EXPECT_EQ(at::isnan(tensor).sum().item<int>(), group.size()) << what;
        EXPECT_EQ(at::isnan(tensor.narrow(0, 0, group.size())).sum().item<int>(), group.size())
            << what;
      }
    }
  });
}

TEST_P(ResultsConformance, IntegersWrapAround) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const auto type : {at::kByte, at::kInt, at::kLong}) {
      const auto largest = type == at::kByte  ? std::numeric_limits<std::uint8_t>::max()
                           : type == at::kInt ? std::numeric_limits<std::int32_t>::max()
                                              : std::numeric_limits<std::int64_t>::max();
      for (const auto op : {ReduceOp::sum, ReduceOp::product}) {
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < group.size(); ++r) inputs.push_back(at::full({100}, largest - r, type));
        const at::Tensor tensor = inputs[rank.rank()].clone();
        group.all_reduce(tensor, {.op = op}).wait();
        expect_same_bits(tensor, reduced(inputs, {.op = op}), describe(name(op), type, 100));
      }
    }
  });
}

TEST_P(ResultsConformance, BroadcastFromEachRoot) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for_all(rank, "broadcast", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      for (int root = 0; root < group.size(); ++root) {
        const at::Tensor tensor = input_of(rank.rank(), type, {count});
        const at::Tensor second = input_of(rank.rank(), at::kLong, {3});
        group.broadcast({tensor, second}, root).wait();
        expect_same_bits(tensor, input_of(root, type, {count}),
                         fmt::format("{} from {}", what, root));
        expect_same_bits(second, input_of(root, at::kLong, {3}),
                         fmt::format("{} from {}", what, root));
      }
    });
  });
}

TEST_P(ResultsConformance, AllGatherGivesEveryRankEveryInput) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for_all(rank, "all_gather", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      const at::Tensor input = input_of(rank.rank(), type, {count});
      std::vector<at::Tensor> outputs;
      for (int r = 0; r < group.size(); ++r) outputs.push_back(at::zeros({count}, type));
      group.all_gather(outputs, input).wait();
      for (int r = 0; r < group.size(); ++r) {
        expect_same_bits(outputs[r], input_of(r, type, {count}),
                         fmt::format("{} from {}", what, r));
      }
      expect_same_bits(input, input_of(rank.rank(), type, {count}),
                       what + ": the input afterwards");
    });
  });
}

TEST_P(ResultsConformance, OneTensorHoldsThePartsOfAllRanks) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const std::int64_t ranks = group.size();
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < ranks; ++r)
      inputs.push_back((at::arange(15) + 15 * r).to(at::kFloat).view({3, 5}));
    const at::Tensor& own = inputs[rank.rank()];
    for (const bool stacked : {false, true}) {
      const at::Tensor all = stacked ? at::zeros({ranks, 3, 5}) : at::zeros({ranks * 3, 5});
      group.all_gather_into_tensor(all, own).wait();
      expect_same_bits(all, stacked ? at::stack(inputs) : at::cat(inputs), "gathered");

      const at::Tensor part = at::zeros({3, 5});
      group.reduce_scatter_tensor(part, all * (rank.rank() + 1)).wait();
      expect_same_bits(part, own * (ranks * (ranks + 1) / 2), "scattered");
      group.reduce_scatter_tensor(part, all * (rank.rank() + 1), ReduceOp::max).wait();
      expect_same_bits(part, own * ranks, "the largest, scattered");
    }
    // Columns are not contiguous.
    const at::Tensor part = at::zeros({1});
    group
        .reduce_scatter_tensor(part,
                               at::arange(2 * ranks).to(at::kFloat).view({ranks, 2}).select(1, 1))
        .wait();
    EXPECT_EQ(part.item<float>(), ranks * (2 * rank.rank() + 1));
  });
}

// As pairs of real numbers. Every other rank's tensor is lazily conjugated.
TEST_P(ResultsConformance, ComplexTensorsHaveSumsAndMeans) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    constexpr std::int64_t kPart = 1023;
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto pairs = inputs_of_all(group.size(), type, {kPart * group.size(), 2});
      const auto own = [&] {
        const at::Tensor plain = at::view_as_complex(pairs[rank.rank()].clone());
        return rank.rank() % 2 == 0 ? plain : plain.conj().resolve_conj().conj();
      };
      const auto expect_sums = [&](const at::Tensor& actual, const std::vector<at::Tensor>& of,
                                   const AllReduceOptions& options, std::string_view call) {
        expect_reduced(
            at::view_as_real(actual.resolve_conj()), of, options,
            describe(fmt::format("{} {} of pairs", call, name(options.op)), type, actual.numel()));
      };
      for (const auto op : {ReduceOp::sum, ReduceOp::mean}) {
        const AllReduceOptions options{.op = op, .scale = 0.5};
        const at::Tensor tensor = own();
        group.all_reduce(tensor, options).wait();
        expect_sums(tensor, pairs, options, "all_reduce");

        const at::Tensor at_root = own();
        group.reduce(at_root, 0, options).wait();
        if (rank.rank() == 0) expect_sums(at_root, pairs, options, "reduce");

        std::vector<at::Tensor> parts;
        for (const at::Tensor& of_rank : pairs) {
          parts.push_back(of_rank.narrow(0, rank.rank() * kPart, kPart));
        }
        const at::Tensor part = at::empty({kPart}, c10::toComplexType(type));
        group.reduce_scatter_tensor(part, own(), options).wait();
        expect_sums(part, parts, options, "reduce_scatter");

        const at::Tensor in_ring = own();
        group.all_reduce(in_ring, {.op = op, .algorithm = Algorithm::ring, .scale = 0.5}).wait();
        EXPECT_TRUE(at::allclose(in_ring.resolve_conj(), tensor.resolve_conj()));
      }
    }
  });
}

TEST_P(ResultsConformance, ReduceGivesRootAloneTheReduction) {
  run_in_group([this](Rank& rank, ProcessGroup& group) {
    int round = 0;
    for_all(rank, "reduce", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      const auto inputs = inputs_of_all(group.size(), type, {count});
      for (const auto op : kOps) {
        if (op == ReduceOp::mean && !can_be_scaled(type)) continue;
        const int root = round++ % group.size();
        const at::Tensor tensor = inputs[rank.rank()].clone();
        group.reduce(tensor, root, op).wait();
        const auto to = fmt::format("{} {} to {}", name(op), what, root);
        if (rank.rank() == root) {
          expect_reduced(tensor, inputs, {.op = op}, to);
        } else {
          expect_same_bits(tensor, inputs[rank.rank()], to);
        }
      }
    });
    const at::Tensor shared = group.empty({50'000}, at::kFloat).fill_(rank.rank() + 1);
    const at::Tensor ordinary = at::full({7}, rank.rank() + 1);
    group.reduce({shared, ordinary}, 0).wait();
    const int sum = rank.size() * (rank.size() + 1) / 2;
    EXPECT_EQ(shared[49'999].item<int>(), rank.rank() == 0 ? sum : rank.rank() + 1);
    EXPECT_EQ(ordinary[6].item<int>(), rank.rank() == 0 ? sum : rank.rank() + 1);
  });
}

TEST_P(ResultsConformance, GatherGivesRootEveryInput) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for_all(rank, "gather", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      for (int root = 0; root < group.size(); ++root) {
        std::vector<at::Tensor> outputs;
        for (int r = 0; r < group.size() && rank.rank() == root; ++r) {
          outputs.push_back(at::zeros({count}, type));
        }
        group.gather(outputs, input_of(rank.rank(), type, {count}), root).wait();
        for (std::size_t r = 0; r < outputs.size(); ++r) {
          expect_same_bits(outputs[r], input_of(static_cast<int>(r), type, {count}),
                           fmt::format("{} from {} to {}", what, r, root));
        }
      }
    });
  });
}

TEST_P(ResultsConformance, ScatterGivesEachRankItsPartOfRoots) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for_all(rank, "scatter", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      for (int root = 0; root < group.size(); ++root) {
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < group.size() && rank.rank() == root; ++r) {
          inputs.push_back(input_of(root, type, {count}, r));
        }
        const at::Tensor output = at::zeros({count}, type);
        group.scatter(output, inputs, root).wait();
        expect_same_bits(output, input_of(root, type, {count}, rank.rank()),
                         fmt::format("{} from {}", what, root));
      }
    });
  });
}

TEST_P(ResultsConformance, ReduceScatterGivesEachRankItsPart) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for_all(rank, "reduce_scatter", [&](at::ScalarType type, std::int64_t count, const auto& what) {
      // parts[r]: what all ranks hold for rank r.
      std::vector<at::Tensor> mine;
      for (int r = 0; r < group.size(); ++r)
        mine.push_back(input_of(rank.rank(), type, {count}, r));
      const auto parts = inputs_of_all(group.size(), type, {count}, rank.rank());
      for (const auto op : kOps) {
        if (op == ReduceOp::mean && !can_be_scaled(type)) continue;
        const at::Tensor output = at::zeros({count}, type);
        group.reduce_scatter(output, mine, op).wait();
        expect_same_bits(output, reduced(parts, {.op = op}), fmt::format("{} {}", name(op), what));
      }
      for (int r = 0; r < group.size(); ++r) {
        expect_same_bits(mine[r], input_of(rank.rank(), type, {count}, r),
                         what + ": the input afterwards");
      }
    });
  });
}

TEST_P(ResultsConformance, BarrierWaitsForTheLastRank) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < 40; ++round) {
      const int late = round % group.size();
      const std::string sign = fmt::format("{}/round-{}", rank.folder(), round);
      if (rank.rank() == late) std::ofstream(sign) << "here";
      group.barrier().wait();
      EXPECT_TRUE(std::filesystem::exists(sign)) << "round " << round;
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
