// SPDX-License-Identifier: BSD-3-Clause
// Objects of every kind, between ranks that are processes.
#include "lockstep/comm/objects.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "comm/conformance/expect_error.h"
#include "support/join.h"
#include "support/rank_processes.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using testing::Rank;
using testing::run_ranks;

static_assert(PlainObject<double> && JsonObject<nlohmann::json>);
static_assert(!PlainObject<std::string> && !PlainObject<const char*>);
static_assert(PlainObject<std::array<float, 3>>);
static_assert(!PlainObject<std::array<const char*, 3>>);
static_assert(!PlainObject<at::IntArrayRef>, "its elements are elsewhere");

TEST(Objects, AreBroadcastFromRoot) {
  run_ranks(3, [](Rank& rank) {
    const auto group = testing::join(rank);
    for (int root = 0; root < 3; ++root) {
      const bool is_root = rank.rank() == root;
      const std::string text(static_cast<std::size_t>(100'000 * root), 'x');
      EXPECT_EQ(broadcast_object(is_root ? text : "of no interest", root, *group), text);
      EXPECT_EQ(broadcast_object(is_root ? 2.5 : 0, root, *group), 2.5);
      const nlohmann::json json = {{"epoch", root}, {"loss", {0.5, nullptr}}};
      EXPECT_EQ(broadcast_object(is_root ? json : nlohmann::json(), root, *group), json);
    }
  });
}

TEST(Objects, AreGatheredInTheOrderOfTheRanks) {
  run_ranks(3, [](Rank& rank) {
    const auto group = testing::join(rank);
    const std::string text(static_cast<std::size_t>(rank.rank()), 'x');
    EXPECT_THAT(all_gather_object(text, *group), ElementsAre("", "x", "xx"));
    EXPECT_THAT(all_gather_object("literal", *group), ElementsAre("literal", "literal", "literal"));
    EXPECT_THAT(all_gather_object(std::string(), *group), ElementsAre("", "", ""));
    struct Point {
      int x;
      float y;
    };
    const auto points = all_gather_object(Point{rank.rank(), 0.5F}, *group);
    EXPECT_EQ(points[2].x, 2);
    EXPECT_EQ(points[1].y, 0.5F);
    const auto jsons = all_gather_object(nlohmann::json{{"rank", rank.rank()}}, *group);
    EXPECT_EQ(jsons[1]["rank"], 1);
  });
}

TEST(Objects, KeepTheirNumbersInJson) {
  run_ranks(2, [](Rank& rank) {
    const auto group = testing::join(rank);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const nlohmann::json own = {{"loss", rank.rank() == 1 ? std::nan("") : 0.1},
                                {"norms", {kInfinity, -kInfinity, -0.0}},
                                {"bytes", nlohmann::json::binary({0xe9, 0}, 42)}};
    for (const nlohmann::json& arrived :
         {all_gather_object(own, *group)[1], broadcast_object(own, 1, *group)}) {
      EXPECT_TRUE(std::isnan(arrived["loss"].get<double>()));
      EXPECT_EQ(arrived["norms"], own["norms"]);
      EXPECT_TRUE(std::signbit(arrived["norms"][2].get<double>()));
      EXPECT_EQ(arrived["bytes"], own["bytes"]);
    }
    EXPECT_EQ(all_gather_object(own, *group)[0]["loss"], 0.1);
  });
}

TEST(Objects, WithTextInAnotherEncodingAreRefusedOnEveryRank) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [ranks](Rank& rank) {
      const auto group = testing::join(rank);
      const int last = ranks - 1;
      const auto names = [&](const char* text) {
        return nlohmann::json{{"names", {"a", rank.rank() == last ? text : "b"}}};
      };
      const std::vector<std::string> words = {fmt::format("rank {} passed", last), "not UTF-8",
                                              "/names/1"};
      testing::expect_error<UsageError>("gathered", words,
                                        [&] { all_gather_object(names("caf\xe9"), *group); });
      testing::expect_error<UsageError>("broadcast", words,
                                        [&] { broadcast_object(names("caf\xe9"), last, *group); });
      EXPECT_EQ(all_gather_object(names("café"), *group).back()["names"][1], "café");
    });
  }
}

TEST(Objects, OfDifferentTypesAreRefused) {
  run_ranks(2, [](Rank& rank) {
    const auto group = testing::join(rank);
    const auto gather = [&] {
      if (rank.rank() == 0) {
        all_gather_object(std::int16_t{1}, *group);
      } else {
        all_gather_object(std::int64_t{1}, *group);
      }
    };
    testing::expect_error<UsageError>("two types", {"rank", "bytes", "same type"}, gather);
    if (rank.rank() == 1) {
      testing::expect_error<UsageError>("no JSON", {"did not pass JSON", "same type"},
                                        [&] { broadcast_object(nlohmann::json(), 0, *group); });
    } else {
      EXPECT_EQ(broadcast_object("{", 0, *group), "{");
    }
  });
}

}  // namespace
}  // namespace lockstep
