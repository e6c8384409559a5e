// Package patterns bounds what the validation of custom resources keeps of compiled patterns.
//
// k8s.io/kube-openapi compiles the pattern of a schema when it validates the first value, and keeps the
// result in a map of the process for ever: also of definitions that were deleted, and of each state of
// one that changes. Neither the map nor the compiler can be replaced through its API, and a fork is no
// option for one variable. So this package reaches the map by its symbol, and empties it when it has
// too many bytes: patterns in use are compiled again at the next value. The map is replaced as a whole
// by the library itself, under the mutex that is taken here, so that readers never see a change.
//
// Compiled patterns of CEL expressions need no bound here: constant ones are part of compiled programs,
// which go with their definitions, and others are not kept.
package patterns

import (
	"regexp"
	"regexp/syntax"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"github.com/prometheus/client_golang/prometheus"
	_ "k8s.io/kube-openapi/pkg/validation/validate" // which has the variables

	"github.com/shardplane/shardplane/pkg/instruments"
)

// compiled is the map[string]*regexp.Regexp of the library.
//
//go:linkname compiled k8s.io/kube-openapi/pkg/validation/validate.reDict
var compiled atomic.Value

// compiling guards changes of it.
//
//go:linkname compiling k8s.io/kube-openapi/pkg/validation/validate.cacheMutex
var compiling *sync.Mutex

// DefaultLimit is how many bytes of compiled patterns a process keeps.
const DefaultLimit = 32 << 20

// Bound bounds the compiled patterns of the process.
type Bound struct {
	limit int64
	// seen is how many patterns there were at the last look.
	seen atomic.Int64

	mu    sync.Mutex
	known map[string]int64
	bytes int64
	kept  prometheus.Gauge
}

// NewBound returns a bound of so many bytes. registerer may be nil.
func NewBound(limit int64, registerer prometheus.Registerer) *Bound {
	return &Bound{limit: limit, known: map[string]int64{}, kept: instruments.Register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "shardplane", Subsystem: "custom_resources", Name: "compiled_pattern_bytes",
		Help: "[ALPHA] Estimated memory of the compiled patterns of schemas that are kept.",
	}))}
}

// Trim drops all compiled patterns if they have more bytes than the limit. It is called after each
// request that may have compiled some, and costs nothing unless it has.
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

// Bytes estimates how much memory a compiled pattern takes: its program, as often as the matchers of
// package regexp keep it, and what it was compiled from.
func Bytes(pattern string) int64 {
	const fixed, instruction, char, copies = 1024, 40, 4, 3
	size := int64(fixed + 2*len(pattern))
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return size
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return size
	}
	for i := range program.Inst {
		size += copies * int64(instruction+char*len(program.Inst[i].Rune))
	}
	return size
}
