package measure

import (
	"math"
	"slices"
	"sync"
	"time"
)

// Recorder collects the durations of one kind of operation from many
// goroutines. It keeps every sample: percentiles are exact, and a run is short.
type Recorder struct {
	mu      sync.Mutex
	samples []time.Duration
	errors  int
	first   error
}

// Add records one operation that succeeded.
func (r *Recorder) Add(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, d)
}

// Fail records one operation that failed.
func (r *Recorder) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors++
	if r.first == nil {
		r.first = err
	}
}

// Time runs f and records how long it took, or that it failed.
func (r *Recorder) Time(f func() error) error {
	start := time.Now()
	err := f()
	if err != nil {
		r.Fail(err)
		return err
	}
	r.Add(time.Since(start))
	return nil
}

// Count returns how many operations succeeded so far.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.samples)
}

// FirstError returns the first failure; nil when there was none.
func (r *Recorder) FirstError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}

// Latency are the percentiles of a set of durations, in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Rate returns the result of the operations that were recorded within elapsed.
func (r *Recorder) Rate(name, target string, elapsed time.Duration) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := Result{Name: name, Target: target, Unit: "/s", Count: len(r.samples), Errors: r.errors, Latency: latency(r.samples)}
	if elapsed > 0 {
		result.Value = float64(len(r.samples)) / elapsed.Seconds()
	}
	return result
}

// Median returns the result of operations of which the time is the point: its
// value is the median.
func (r *Recorder) Median(name, target string) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	result := Result{Name: name, Target: target, Unit: "ms", Count: len(r.samples), Errors: r.errors, Latency: latency(r.samples)}
	if result.Latency != nil {
		result.Value = result.Latency.P50
	}
	return result
}

// latency computes the percentiles; nil when there is nothing to compute.
func latency(samples []time.Duration) *Latency {
	if len(samples) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(samples))
	return &Latency{
		P50: milliseconds(percentile(sorted, 0.50)),
		P90: milliseconds(percentile(sorted, 0.90)),
		P99: milliseconds(percentile(sorted, 0.99)),
		Max: milliseconds(sorted[len(sorted)-1]),
	}
}

// percentile returns the smallest sample that at least the share q of all
// samples do not exceed (the nearest-rank definition).
func percentile(sorted []time.Duration, q float64) time.Duration {
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
