package fairness

import (
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// bytesPerSeat is the response size for which a list needs an additional seat.
	bytesPerSeat = 128 << 10
	// bytesPerObject is the assumed size of an object in a response.
	bytesPerObject = 1280
	// maxSeats is the maximum number of seats of a request.
	//
	//reference:none
	maxSeats = 10
	// rememberedLists is the maximum number of collections with a cached size.
	rememberedLists = 16384
	// watchCost is the cost of a watch for each written object.
	watchCost = 50 * time.Microsecond
)

type collection struct {
	cluster   request.Cluster
	resource  schema.GroupResource
	namespace string
}

func collectionOf(cluster request.Cluster, info *apirequest.RequestInfo) collection {
	return collection{cluster: cluster, resource: schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, namespace: info.Namespace}
}

// costs estimates costs from the size of previous lists and the number of watches of a logical cluster.
type costs struct {
	// lists contains the size in bytes of the last list, or page, of a collection.
	lists *lru.Cache

	mu      sync.Mutex
	watches map[collection]int
}

type listKey struct {
	collection
	paged bool
}

func listKeyOf(r *http.Request, cluster request.Cluster, info *apirequest.RequestInfo) listKey {
	return listKey{collectionOf(cluster, info), r.URL.Query().Has("limit")}
}

func newCosts() *costs { return &costs{lists: lru.New(rememberedLists), watches: map[collection]int{}} }

// estimate implements fcrequest.WorkEstimatorFunc. Requests do not wait for the cost of watches.
func (c *costs) estimate(r *http.Request, _, _ string) fcrequest.WorkEstimate {
	estimate := fcrequest.WorkEstimate{InitialSeats: 1}
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		return estimate
	}
	cluster, _ := request.ClusterFrom(r.Context())
	switch info.Verb {
	case "list", "watch":
		bytes, known := c.lists.Get(listKeyOf(r, cluster, info))
		if known && (info.Verb == "list" || requestsInitialEvents(r)) {
			estimate.InitialSeats = uint64(min(1+bytes.(int64)/bytesPerSeat, maxSeats)) //nolint:gosec // between 1 and 10
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

// objects estimates the number of objects in a collection from its last complete list. It is at least 1.
func (c *costs) objects(of collection) int64 {
	bytes, known := c.lists.Get(listKey{of, false})
	if !known {
		return 1
	}
	return max(1, bytes.(int64)/bytesPerObject)
}

// requestsInitialEvents reports whether a watch starts with all objects.
func requestsInitialEvents(r *http.Request) bool {
	query := r.URL.Query()
	version := query.Get("resourceVersion")
	return query.Get("sendInitialEvents") == "true" || version == "" || version == "0"
}

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

// A logical cluster that is the only active one may use the entire server. Otherwise, it gets few seats, and is
// throttled between its requests if it sends more. If the cores of a server are never idle, it responds late to all
// users, because neither the Go scheduler nor the kernel can prioritize requests.

const (
	// contentionWindow is how long a logical cluster is active after a request.
	contentionWindow = 10 * time.Second
	//reference:none
	maxThrottle = 10 * time.Millisecond
)

// activity records the last two active logical clusters, which suffices to detect others than a given one.
type activity struct {
	last, other struct {
		cluster string
		at      time.Time
	}
}

func (a *activity) saw(cluster string, now time.Time) {
	if a.last.cluster != cluster {
		a.other, a.last.cluster = a.last, cluster
	}
	a.last.at = now
}

// othersThan reports whether another logical cluster has recently sent a request.
func (a *activity) othersThan(cluster string, now time.Time) bool {
	other := a.last.at
	if a.last.cluster == cluster {
		other = a.other.at
	}
	return now.Sub(other) < contentionWindow
}

// FlowKey identifies a flow: the non-mutating or the mutating requests of a logical cluster.
type FlowKey struct {
	Cluster string
	Writes  bool
}

// flow is the state of a flow. It exists while it has requests, or its virtual time is ahead of the queue's.
type flow struct {
	key                    FlowKey
	inUse, waiting, paused int
	returning              []*queuedRequest
	// at is the virtual time of the flow.
	at float64
	// mean is the mean duration of a request in seconds per seat.
	mean           float64
	throttledUntil time.Time
	// lanes are the waiting requests by user. The first request of the first lane is next.
	lanes []*lane
	// index is the position in the heap of ready flows, or -1.
	index int
}

type lane struct {
	user     string
	requests []*queuedRequest
}

type queuedRequest struct {
	flow    *flow
	seats   int
	granted chan struct{}
	started bool
	// estimated is the estimated cost that was added to the virtual time when the request was granted.
	estimated float64
	since     time.Time

	// open is the number of pauses that have not ended. They may overlap.
	open int
	// pausing is set while the seat is released, since began.
	pausing bool
	began   time.Time
	// back is closed when the request may continue. It is nil while nothing waits for the seat.
	back   chan struct{}
	paused time.Duration
	// released is set once the seat was returned, which is before the end of a watch.
	released bool
}

func (f *flow) idle() bool { return f.inUse == 0 && f.waiting == 0 && f.paused == 0 }

func (f *flow) wants() bool { return f.waiting > 0 || len(f.returning) > 0 }

func (f *flow) head() *queuedRequest {
	if len(f.returning) > 0 {
		return f.returning[0]
	}
	return f.lanes[0].requests[0]
}

// pop removes the next new request. Other requests of its user come after those of other users.
func (f *flow) pop() *queuedRequest {
	first := f.lanes[0]
	t := first.requests[0]
	first.requests = first.requests[1:]
	f.lanes = f.lanes[1:]
	if len(first.requests) > 0 {
		f.lanes = append(f.lanes, first)
	}
	f.waiting--
	return t
}

func (f *flow) push(user string, t *queuedRequest) {
	f.waiting++
	for _, l := range f.lanes {
		if l.user == user {
			l.requests = append(l.requests, t)
			return
		}
	}
	f.lanes = append(f.lanes, &lane{user: user, requests: []*queuedRequest{t}})
}

func (f *flow) remove(t *queuedRequest) {
	for i, l := range f.lanes {
		if at := slices.Index(l.requests, t); at >= 0 {
			l.requests = slices.Delete(l.requests, at, at+1)
			f.waiting--
			if len(l.requests) == 0 {
				f.lanes = slices.Delete(f.lanes, i, i+1)
			}
			return
		}
	}
}

func (f *flow) waitingOf(user string) int {
	for _, l := range f.lanes {
		if l.user == user {
			return len(l.requests)
		}
	}
	return 0
}

type flowHeap []*flow

func (h flowHeap) Len() int { return len(h) }

func (h flowHeap) Less(i, j int) bool { return h[i].at < h[j].at }

func (h flowHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *flowHeap) Push(x any) {
	f, _ := x.(*flow)
	f.index = len(*h)
	*h = append(*h, f)
}

func (h *flowHeap) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	f.index = -1
	return f
}
