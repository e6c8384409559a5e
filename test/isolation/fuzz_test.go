package isolation

import (
	"encoding/json"
	"flag"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

// decode reads a JSON answer, and reports whether that was possible.
func decode(a answer, into any) bool { return json.Unmarshal(a.body, into) == nil }

// FuzzIsolation lets the fuzzer write requests, beginning with generated ones:
//
//	go test ./test/isolation -run xxx -fuzz FuzzIsolation
//
// A plain test run skips it: TestIsolation sends the same beginnings.
func FuzzIsolation(f *testing.F) {
	fuzzing := false
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if set := flag.Lookup(name); set != nil && set.Value.String() != "" && set.Value.String() != "false" {
			fuzzing = true
		}
	}
	if !fuzzing {
		f.Skip("without -fuzz, TestIsolation sends what this starts with")
	}
	c := harness.Start(f, harness.Options{Shards: 2, DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=1ms"}}})
	w := newWorld(f, c)
	w.inside()
	for number := range uint64(500) {
		in := w.generate(1, number)
		f.Add(uint8(in.who), uint8(in.target), in.raw) //nolint:gosec // both are small
	}
	f.Fuzz(func(t *testing.T, who, target uint8, raw string) {
		in := input{who: int(who) % len(w.whos), target: int(target) % len(w.targets), raw: raw}
		if !w.whos[in.who].attacks(w.targets[in.target].name) {
			return
		}
		if _, found := w.attack(t.Context(), in); found != nil {
			t.Fatal(w.describe(*found))
		}
	})
}
