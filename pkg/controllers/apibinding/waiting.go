package apibinding

import (
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/client"
)

// waiting are the bindings that wait for names.
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
	keys := make([]client.Key, 0, len(w.all[cluster]))
	for key := range w.all[cluster] {
		keys = append(keys, key)
	}
	return keys
}
