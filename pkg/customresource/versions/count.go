package versions

import (
	"errors"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
)

// errUncounted makes a metric say that its value is not known.
var errUncounted = errors.New("not all objects could be counted")

// tally is what was counted of some resources.
type tally struct {
	resources, failed, objects, bytes int64
}

func (t tally) plus(o tally, sign int64) tally {
	return tally{t.resources + sign*o.resources, t.failed + sign*o.failed, t.objects + sign*o.objects, t.bytes + sign*o.bytes}
}

// tallies are what was counted of each resource, and the sums of those that have
// one name in metrics.
type tallies struct {
	of, sums map[schema.GroupResource]tally
}

// set takes over what was counted of a resource; the zero tally forgets it.
func (t tallies) set(name, resource schema.GroupResource, counted tally) {
	sum := t.sums[name].plus(t.of[resource], -1).plus(counted, 1)
	t.of[resource], t.sums[name] = counted, sum
	if counted == (tally{}) {
		delete(t.of, resource)
	}
	if sum.resources == 0 {
		delete(t.sums, name)
		metrics.DeleteStoreStats(name)
		return
	}
	stats, err := storage.Stats{ObjectCount: sum.objects}, error(nil)
	if sum.objects > 0 {
		stats.EstimatedAverageObjectSizeBytes = sum.bytes / sum.objects
	}
	if sum.failed > 0 {
		err = errUncounted
	}
	metrics.UpdateStoreStats(name, stats, err)
}
