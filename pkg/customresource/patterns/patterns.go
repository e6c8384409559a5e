// Package patterns limits the memory of patterns that the validation of custom resources compiles.
//
// k8s.io/kube-openapi keeps each compiled pattern forever in a global map, even if the definition was deleted or
// changed, and has no API for it. Therefore this package accesses the map by its symbol, and replaces it by an
// empty one under the library's mutex when it is too large. Patterns in use are then compiled again.
//
// Patterns in CEL expressions need no limit: constant ones belong to compiled programs, which are removed with
// their definitions, and others are not kept.
package patterns

import (
	"regexp"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"github.com/prometheus/client_golang/prometheus"
	_ "k8s.io/kube-openapi/pkg/validation/validate" // contains the variables

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

// compiled is the map[string]*regexp.Regexp of the library.
//
//go:linkname compiled k8s.io/kube-openapi/pkg/validation/validate.reDict
var compiled atomic.Value

// compiling guards changes of it.
//
//go:linkname compiling k8s.io/kube-openapi/pkg/validation/validate.cacheMutex
var compiling *sync.Mutex

// DefaultLimit is the maximum memory of compiled patterns in bytes.
const DefaultLimit = 32 << 20

// Bound limits the compiled patterns of the process.
type Bound struct {
	limit int64
	// seen is the number of patterns at the last check.
	seen atomic.Int64

	mu    sync.Mutex
	known map[string]int64
	bytes int64
	kept  prometheus.Gauge
}

// NewBound returns a limit in bytes. registerer may be nil.
func NewBound(limit int64, registerer prometheus.Registerer) *Bound {
	return &Bound{limit: limit, known: map[string]int64{}, kept: instruments.NewGauge(registerer, "shardplane_custom_resources_compiled_pattern_bytes",
		"Estimated memory of the cached compiled patterns of schemas.")}
}

// Trim removes all compiled patterns if they exceed the limit. It must be called after each request that may
// have compiled some, and is cheap if the number has not changed.
func (b *Bound) Trim() {
	if int64(len(load())) == b.seen.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	all := load()
	if len(all) < len(b.known) { // another server in the process has emptied it
		b.known, b.bytes = map[string]int64{}, 0
	}
	for pattern := range all {
		if _, known := b.known[pattern]; !known {
			size := Bytes(pattern)
			b.known[pattern] = size
			b.bytes += size
		}
	}
	b.seen.Store(int64(len(all)))
	if b.bytes > b.limit {
		compiling.Lock()
		compiled.Store(map[string]*regexp.Regexp{})
		compiling.Unlock()
		b.known, b.bytes = map[string]int64{}, 0
		b.seen.Store(0)
	}
	b.kept.Set(float64(b.bytes))
}

func load() map[string]*regexp.Regexp {
	all, _ := compiled.Load().(map[string]*regexp.Regexp)
	return all
}

// Bytes estimates the memory of a compiled pattern: its program, with the copies that package regexp keeps,
// and its source.
func Bytes(pattern string) int64 {
	const fixed, instruction, copies = 1024, 44, 3
	return int64(fixed + 2*len(pattern) + copies*instruction*patterns.Size(pattern))
}
