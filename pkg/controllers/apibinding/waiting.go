package apibinding

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/api/equality"

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

// tellWaiting says in a binding that has bound nothing yet what it waits for. What is bound goes on, by the claims that the
// export made when it was known last: nobody else is needed to accept them, and to reject them.
func (r *reconciler) tellWaiting(ctx context.Context, key client.Key, why error) error {
	says := func(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
		if conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			binding = binding.DeepCopy()
			tellClaims(binding)
			return binding
		}
		return waitingFor(binding, why)
	}
	known, err := r.known(key)
	if err != nil || known.DeletionTimestamp != nil || equality.Semantic.DeepEqual(known, says(known)) {
		return ignoreNotFound(err)
	}
	binding, err := r.binding(ctx, key)
	if err == nil && binding.DeletionTimestamp == nil {
		_, err = r.commit(ctx, binding, says(binding))
	}
	return ignoreNotFound(err)
}
