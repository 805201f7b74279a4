// SPDX-License-Identifier: BSD-3-Clause
// Windows of mapped tokens, and files that are missing, cut or not what they should be.
#include "lockstep/data/token_dataset.h"

#include <thread>

#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

template <class Token>
std::string token_bytes(const std::vector<Token>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Token)};
}

template <class Function>
void expect_tokens_refused(const Function& function, const std::string& text) {
  EXPECT_THAT(function, ThrowsMessage<UsageError>(HasSubstr(text)));
}

TEST(TokenDataset, GivesConsecutiveWindowsAndTheTokensThatFollow) {
  const TemporaryFolder folder;
  folder.write("small", token_bytes<std::uint16_t>({1, 2, 3, 4, 65535, 6, 7, 8}));
  folder.write("large", token_bytes<std::uint32_t>({1, 2, 3, 4, 4294967295, 6, 7, 8}));
  for (const auto type : {TokenType::uint16, TokenType::uint32}) {
    const bool small = type == TokenType::uint16;
    TokenDataset tokens(folder.path() / (small ? "small" : "large"), {.window = 3, .type = type});
    EXPECT_EQ(tokens.tokens(), 8);
    ASSERT_EQ(tokens.size(), 2u);  // the token 8 only follows
    const std::int64_t most = small ? 65535 : 4294967295;
    EXPECT_TRUE(tokens.get(0).data.equal(torch::tensor({1, 2, 3}, torch::kLong)));
    EXPECT_TRUE(tokens.get(0).target.equal(torch::tensor({2, 3, 4}, torch::kLong)));
    EXPECT_TRUE(tokens.get(1).data.equal(torch::tensor({std::int64_t{4}, most, std::int64_t{6}})));
    EXPECT_TRUE(
        tokens.get(1).target.equal(torch::tensor({most, std::int64_t{6}, std::int64_t{7}})));
  }
}

TEST(TokenDataset, CopiesReadOneMappingAtOnce) {
  const TemporaryFolder folder;
  folder.write("tokens", token_bytes<std::uint16_t>(std::vector<std::uint16_t>(10'001, 5)));
  auto tokens =
      std::make_unique<TokenDataset>(folder.path() / "tokens", TokenDatasetOptions{.window = 100});
  std::vector<std::thread> threads;
  std::atomic<std::int64_t> sum = 0;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([copy = *tokens, &sum]() mutable {
      for (std::size_t k = 0; k < *copy.size(); ++k) {
        sum += copy.get(k).data.sum().item<std::int64_t>();
      }
    });
  }
  tokens.reset();
  std::filesystem::remove(folder.path() / "tokens");
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 3 * 10'000 * 5);
}

TEST(TokenDataset, RefusesFilesThatAreNotTokens) {
  const TemporaryFolder folder;
  const auto open = [&](const char* name, const TokenDatasetOptions& options) {
    return [&folder, name, options] { TokenDataset(folder.path() / name, options); };
  };
  expect_tokens_refused(open("absent", {.window = 1}),
                        "/absent: there is no such token file; write one");
  expect_tokens_refused(open(".", {.window = 1}), "not a regular file");
  folder.write("empty", "");
  expect_tokens_refused(open("empty", {.window = 1}), "it has 0 tokens, fewer than a window of 1");
  folder.write("odd", "abcde");
  expect_tokens_refused(open("odd", {.window = 1}),
                        "its 5 bytes are not a whole number of tokens of 2");
  folder.write("tokens", "abcdef");
  expect_tokens_refused(open("tokens", {.window = 1, .type = TokenType::uint32}),
                        "its 6 bytes are not a whole number of tokens of 4");
  expect_tokens_refused(open("tokens", {.window = 3}),
                        "it has 3 tokens, fewer than a window of 3 and");
  expect_tokens_refused(open("tokens", {.window = std::numeric_limits<std::int64_t>::max()}),
                        "fewer than");
  expect_tokens_refused(open("tokens", {}), "window is 0");
  expect_tokens_refused(open("tokens", {.window = 2, .vocabulary = -1}), "vocabulary -1");
}

TEST(TokenDataset, NamesATokenBeyondTheVocabulary) {
  const TemporaryFolder folder;
  folder.write("tokens", token_bytes<std::uint16_t>({0, 1, 2, 3, 4, 50, 6}));
  TokenDataset tokens(folder.path() / "tokens", {.window = 2, .vocabulary = 50});
  EXPECT_EQ(tokens.get(0).data.size(0), 2);
  expect_tokens_refused([&] { tokens.get(2); }, "token 5 is 50, but the vocabulary has 50 tokens");
  expect_tokens_refused([&] { tokens.get(3); }, "there is no window 3; there are 3");
}

TEST(TokenDataset, NoticesThatTheFileHasBecomeShorter) {
  const TemporaryFolder folder;
  folder.write("tokens", std::string(40'000, 'a'));
  TokenDataset tokens(folder.path() / "tokens", {.window = 10});
  std::filesystem::resize_file(folder.path() / "tokens", 4);
  EXPECT_THAT(
      [&] { tokens.get(1500); },
      ThrowsMessage<BackendError>(AllOf(HasSubstr("had 40000 bytes"), HasSubstr("now has 4"))));
}

}  // namespace
}  // namespace lockstep
