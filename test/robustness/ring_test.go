package robustness

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/shardplane/shardplane/test/robustness/history"
)

// shardSelector returns the shard selector for the ranges of a scope.
func shardSelector(s history.Scope) string {
	field := "object.metadata." + cmp.Or(string(s.By), "uid")
	terms := make([]string, 0, len(s.Ranges))
	for _, r := range s.Ranges {
		end := "0x10000000000000000"
		if r.Last != math.MaxUint64 {
			end = fmt.Sprintf("0x%016x", r.Last+1)
		}
		terms = append(terms, fmt.Sprintf("shardRange(%s, '0x%016x', '%s')", field, r.First, end))
	}
	return strings.Join(terms, " || ")
}

// split divides a range into n parts.
func split(r history.Range, n uint64) []history.Range {
	step := (r.Last-r.First)/n + 1
	parts := make([]history.Range, 0, n)
	for i := range n {
		part := history.Range{First: r.First + i*step, Last: r.First + (i+1)*step - 1}
		if i == n-1 {
			part.Last = r.Last
		}
		parts = append(parts, part)
	}
	return parts
}

// ring is the range of all hashes.
var ring = history.Range{First: 0, Last: math.MaxUint64}
