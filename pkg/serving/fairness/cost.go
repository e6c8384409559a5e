package fairness

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// bytesPerSeat is how much of an answer makes a list take one more seat: a
	// hundred objects of a kilobyte and a quarter.
	bytesPerSeat = 128 << 10
	// bytesPerObject is what an object has in an answer.
	bytesPerObject = 1280
	// maxSeats is the most that one request takes.
	maxSeats = 10
	// rememberedLists bounds for how many collections the size is kept.
	rememberedLists = 16384
	// watchCost is what the server does for one watcher of a written object.
	watchCost = 50 * time.Microsecond
)

// collection is the objects of a resource in a logical cluster, or in one of its
// namespaces.
type collection struct {
	cluster   request.Cluster
	resource  schema.GroupResource
	namespace string
}

func collectionOf(cluster request.Cluster, info *apirequest.RequestInfo) collection {
	return collection{
		cluster:   cluster,
		resource:  schema.GroupResource{Group: info.APIGroup, Resource: info.Resource},
		namespace: info.Namespace,
	}
}

// costs estimates what requests cost, from what is known of their logical
// cluster: how large its lists were, and how many watch it.
type costs struct {
	// lists holds the bytes of the last list of a collection, or of the last
	// page of it.
	lists *lru.Cache

	mu      sync.Mutex
	watches map[collection]int
}

type listKey struct {
	collection
	paged bool
}

func newCosts() *costs {
	return &costs{lists: lru.New(rememberedLists), watches: map[collection]int{}}
}

// estimate implements fcrequest.WorkEstimatorFunc. The cost for watchers is put
// in the work that follows the request, for which nobody waits.
func (c *costs) estimate(r *http.Request, _, _ string) fcrequest.WorkEstimate {
	estimate := fcrequest.WorkEstimate{InitialSeats: 1}
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		return estimate
	}
	cluster, _ := request.ClusterFrom(r.Context())
	switch info.Verb {
	case "list", "watch":
		key := listKey{collectionOf(cluster, info), r.URL.Query().Has("limit")}
		if bytes, known := c.lists.Get(key); known && (info.Verb == "list" || asksForInitialEvents(r)) {
			estimate.InitialSeats = seatsFor(bytes.(int64))
		}
	case "create", "update", "patch", "delete", "deletecollection":
		of := collectionOf(cluster, info)
		if watchers := c.watchers(of); watchers > 0 {
			estimate.FinalSeats = 1
			estimate.AdditionalLatency = time.Duration(watchers) * watchCost
			if info.Verb == "deletecollection" {
				estimate.AdditionalLatency *= time.Duration(c.objects(of))
			}
		}
	default:
	}
	return estimate
}

// objects estimates how many objects a collection has, from the last list of all
// of it: one at least.
func (c *costs) objects(of collection) int64 {
	bytes, known := c.lists.Get(listKey{of, false})
	if !known {
		return 1
	}
	return max(1, bytes.(int64)/bytesPerObject)
}

// asksForInitialEvents reports whether a watch begins with all objects.
func asksForInitialEvents(r *http.Request) bool {
	query := r.URL.Query()
	version := query.Get("resourceVersion")
	return query.Get("sendInitialEvents") == "true" || version == "" || version == "0"
}

func seatsFor(bytes int64) uint64 {
	return uint64(min(1+bytes/bytesPerSeat, maxSeats)) //nolint:gosec // between 1 and 10
}

// learn remembers how large a list was.
func (c *costs) learn(r *http.Request, cluster request.Cluster, info *apirequest.RequestInfo, bytes int64) {
	c.lists.Add(listKey{collectionOf(cluster, info), r.URL.Query().Has("limit")}, bytes)
}

// watched counts a watch until the returned function is called.
func (c *costs) watched(of collection) (forget func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[of]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.watches[of]--; c.watches[of] <= 0 {
			delete(c.watches, of)
		}
	}
}

// watchers returns how many watches of its own logical cluster see a change in
// the collection.
func (c *costs) watchers(of collection) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.watches[of]
	if of.namespace != "" {
		of.namespace = ""
		count += c.watches[of]
	}
	return count
}
