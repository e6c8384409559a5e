package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Counters are what a shard's process says of itself.
type Counters struct {
	// Heap are the bytes that its Go heap holds, after a garbage collection.
	Heap int64
	// Goroutines are those that there are now.
	Goroutines int
	// WatchCaches, ServingInfos and DocumentSets are those of custom resources that were
	// made since the start.
	WatchCaches, ServingInfos, DocumentSets int
	// HeapProfile is what the heap is made of.
	HeapProfile []byte
}

// ReadCounters asks a shard for its counters.
func ReadCounters(ctx context.Context, shard Target) (Counters, error) {
	clients, err := kubernetes.NewForConfig(shard.rest())
	if err != nil {
		return Counters{}, err
	}
	client := clients.RESTClient()
	var profile []byte
	// What finalizers have set free goes with the second one.
	for range 2 {
		if profile, err = client.Get().AbsPath("/debug/pprof/heap").Param("gc", "1").DoRaw(ctx); err != nil {
			return Counters{}, fmt.Errorf("collecting the garbage of %s: %w", shard.Name, err)
		}
	}
	text, err := readMetrics(ctx, client, shard)
	if err != nil {
		return Counters{}, err
	}
	return Counters{
		Heap:       int64(sumOf(text, "go_memstats_heap_alloc_bytes")),
		Goroutines: int(sumOf(text, "go_goroutines")),
		// Groups that are not built in have one name in metrics.
		WatchCaches:  int(sumOf(text, `apiserver_watch_cache_initializations_total{group="unexpected"`)),
		ServingInfos: int(sumOf(text, "shardplane_custom_resources_serving_infos_total")),
		DocumentSets: int(sumOf(text, "shardplane_custom_resources_document_sets_total")),
		HeapProfile:  profile,
	}, nil
}

func readMetrics(ctx context.Context, client rest.Interface, shard Target) ([]byte, error) {
	text, err := client.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of %s: %w", shard.Name, err)
	}
	return text, nil
}

// Collector is what the management of its memory has taken of a shard's process since its start.
type Collector struct {
	// Collections are how often garbage was collected, and Processor is the time that this took,
	// idle processors included that have helped.
	Collections int
	Processor   time.Duration
	// Returning is the time that it took to give memory back to the system.
	Returning time.Duration
	// Allocated are the bytes that were allocated.
	Allocated int64
}

// ReadCollector asks a shard for that, as of its last collection, and has it collect nothing.
func ReadCollector(ctx context.Context, shard Target) (Collector, error) {
	clients, err := kubernetes.NewForConfig(shard.rest())
	if err != nil {
		return Collector{}, err
	}
	text, err := readMetrics(ctx, clients.RESTClient(), shard)
	return collectorOf(text), err
}

func collectorOf(metrics []byte) Collector {
	seconds := func(name string) time.Duration { return time.Duration(sumOf(metrics, name) * float64(time.Second)) }
	return Collector{
		Collections: int(sumOf(metrics, "go_gc_cycles_total_gc_cycles_total")),
		Processor:   seconds("go_cpu_classes_gc_total_cpu_seconds_total"),
		Returning:   seconds("go_cpu_classes_scavenge_total_cpu_seconds_total"),
		Allocated:   int64(sumOf(metrics, "go_memstats_alloc_bytes_total")),
	}
}

// Since returns what it has taken since.
func (c Collector) Since(before Collector) Collector {
	return Collector{
		Collections: c.Collections - before.Collections, Processor: c.Processor - before.Processor,
		Returning: c.Returning - before.Returning, Allocated: c.Allocated - before.Allocated,
	}
}

// sumOf adds up the metrics whose names and labels start with a prefix.
func sumOf(metrics []byte, prefix string) (sum float64) {
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, len(metrics)+1)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		if value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
			sum += value
		}
	}
	return sum
}

// CPUProfile is what the shard's process computes in the next seconds.
func CPUProfile(ctx context.Context, shard Target, seconds int) ([]byte, error) {
	clients, err := kubernetes.NewForConfig(shard.rest())
	if err != nil {
		return nil, err
	}
	return clients.RESTClient().Get().AbsPath("/debug/pprof/profile").Param("seconds", strconv.Itoa(seconds)).DoRaw(ctx)
}
