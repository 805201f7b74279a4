// SPDX-License-Identifier: BSD-3-Clause
// Every way in which a text is not the number that it should be.
#include "lockstep/core/number.h"

#include <cstdint>
#include <limits>
#include <stdexcept>

#include <gmock/gmock.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr Range<int> kSmall{-5, 70};
constexpr Range<std::int64_t> kAll{std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max()};
constexpr Range<double> kRates{0.001, 1e9};

TEST(Number, ReadsTheWholeText) {
  EXPECT_EQ(parse_number("70", kSmall), 70);
  EXPECT_EQ(parse_number("-5", kSmall), -5);
  EXPECT_EQ(parse_number("007", kSmall), 7);
  EXPECT_EQ(parse_number("9223372036854775807", kAll), kAll.most);
  EXPECT_EQ(parse_number("-9223372036854775808", kAll), kAll.least);
  EXPECT_EQ(parse_number("0.001", kRates), 0.001);
  EXPECT_EQ(parse_number("1e9", kRates), 1e9);
  EXPECT_EQ(parse_number("2", kRates), 2.0);
}

TEST(Number, RefusesAnythingElse) {
  for (const char* text : {"",
                           " ",
                           "-",
                           "+",
                           "5 ",
                           " 5",
                           "5\n",
                           "+5",
                           "--5",
                           "5x",
                           "x5",
                           "0x5",
                           "0b1",
                           "1_0",
                           "1'0",
                           "5.0",
                           "1e1",
                           "5,",
                           "five",
                           "71",
                           "-6",
                           "4294967301",
                           "99999999999999999999"}) {
    EXPECT_FALSE(parse_number(text, kSmall)) << text;
  }
  EXPECT_FALSE(parse_number("9223372036854775808", kAll));
  EXPECT_FALSE(parse_number(std::string_view("5\0", 2), kSmall));
  for (const char* text : {"", " 1", "1 ", "+1", "1.5s", "0x1p3", "nan", "-nan", "nan(1)", "inf",
                           "infinity", "-inf", "1e400", "1e-400", "1,5", "-1", "0", "1e10"}) {
    EXPECT_FALSE(parse_number(text, kRates)) << text;
  }
}

TEST(Number, AnErrorNamesTheOptionTheValueAndTheRange) {
  EXPECT_THAT([] { read_number("--epochs", "ten", kSmall); },
              ThrowsMessage<UsageError>("--epochs \"ten\": give a whole number from -5 to 70"));
  EXPECT_THAT(
      [] { read_number("--timeout", "nan", kRates); },
      ThrowsMessage<UsageError>("--timeout \"nan\": give a number from 0.001 to 1000000000"));
}

class NumberInEnvironment : public ::testing::Test {
 protected:
  ~NumberInEnvironment() override {
    ::unsetenv("LOCKSTEP_TEST_NUMBER");
    ::setenv("OMP_NUM_THREADS", "1", 1);
  }
};

TEST_F(NumberInEnvironment, IsReadAsStrictly) {
  ::unsetenv("LOCKSTEP_TEST_NUMBER");
  EXPECT_FALSE(environment_int("LOCKSTEP_TEST_NUMBER"));
  ::setenv("LOCKSTEP_TEST_NUMBER", "0", 1);
  EXPECT_EQ(environment_int("LOCKSTEP_TEST_NUMBER"), 0);
  EXPECT_THAT([] { environment_int("LOCKSTEP_TEST_NUMBER", kFrom1); },
              ThrowsMessage<UsageError>("LOCKSTEP_TEST_NUMBER=\"0\" in the environment: give a "
                                        "whole number from 1 to 2147483647, or unset it"));
  for (const char* text : {"-1", "2147483648", "0x1", "1 ", "one"}) {
    ::setenv("LOCKSTEP_TEST_NUMBER", text, 1);
    EXPECT_THAT([] { environment_int("LOCKSTEP_TEST_NUMBER"); },
                ThrowsMessage<UsageError>(HasSubstr('"' + std::string(text) + '"')));
  }
}

TEST_F(NumberInEnvironment, MayBeTheFirstOfOpenMPsList) {
  ::setenv("OMP_NUM_THREADS", "4,2,1", 1);
  EXPECT_EQ(omp_num_threads(), 4);
  for (const char* text : {"0", "-1", "4x", ",4", "many"}) {
    ::setenv("OMP_NUM_THREADS", text, 1);
    EXPECT_THAT([] { omp_num_threads(); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("OMP_NUM_THREADS=\"" + std::string(text)),
                                                HasSubstr("from 1 to"))));
  }
}

}  // namespace
}  // namespace lockstep
