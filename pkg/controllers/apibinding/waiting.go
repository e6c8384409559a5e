package apibinding

import (
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/client"
)

// waiting are the bindings that wait for something: names, or room for schemas.
type waiting struct {
	mu  sync.Mutex
	all map[logicalcluster.Name]map[client.Key]bool
}

func (w *waiting) set(key client.Key, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.all[key.Cluster]
	switch {
	case waits && of == nil:
		w.all[key.Cluster] = map[client.Key]bool{key: true}
	case waits:
		of[key] = true
	default:
		delete(of, key)
		if len(of) == 0 {
			delete(w.all, key.Cluster)
		}
	}
}

func (w *waiting) in(cluster logicalcluster.Name) []client.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.all[cluster]))
}

// everywhere returns those of all logical clusters.
func (w *waiting) everywhere() []client.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []client.Key
	for _, of := range w.all {
		keys = slices.AppendSeq(keys, maps.Keys(of))
	}
	return keys
}
