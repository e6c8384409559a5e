// Package unreadable records the stored objects that cannot be read, e.g. because their bytes cannot
// be decoded or because the defaults of their definition expand them beyond a bound. Readers of many
// logical clusters skip such objects, so that one tenant's object does not stop a server, an informer
// or the controllers of a provider. The record is what conditions and metrics report instead.
package unreadable

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	// perCluster and inAll bound the record; objects beyond them are only counted in the metric.
	perCluster, inAll = 100, 10_000
	// named is how many objects an error or a condition names, and messageBytes how long the message
	// about one may be.
	named, messageBytes = 3, 512
)

// Reasons why an object cannot be read.
const (
	Undecodable = "undecodable"
	Defaults    = "defaults"
	Conversion  = "conversion"
	Panic       = "panic"
)

// Error is the error of an object that cannot be read, however often it is tried.
type Error struct {
	Reason string
	Err    error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the Error in err, or nil.
func Of(err error) *Error {
	var bad *Error
	errors.As(err, &bad)
	return bad
}

// Recovered returns an Error for a panic while an object was read.
func Recovered(panicked any) *Error {
	return &Error{Reason: Panic, Err: fmt.Errorf("reading it panicked: %v", panicked)}
}

// Object is a stored object that cannot be read.
type Object struct {
	// Key is its key in etcd without the prefix of all keys, and Revision that of its latest write.
	Key             string
	Revision        int64
	Resource        schema.GroupResource
	Cluster         logicalcluster.Name
	Namespace, Name string
	Reason, Message string
}

// String names the object and says what is wrong with it.
func (o *Object) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s: %s", o.Resource, name, o.Message)
}

// Record is the objects that cannot be read, as far as that is known. It can be used concurrently.
type Record struct {
	size atomic.Int64

	mu       sync.Mutex
	clusters map[logicalcluster.Name]map[string]*Object
	changed  func(logicalcluster.Name)
	reads    *prometheus.CounterVec
}

// NewRecord returns an empty record. registerer may be nil.
func NewRecord(registerer prometheus.Registerer) *Record {
	return &Record{
		clusters: map[logicalcluster.Name]map[string]*Object{}, changed: func(logicalcluster.Name) {},
		reads: instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "shardplane", Subsystem: "storage", Name: "unreadable_object_reads_total",
			Help: "[ALPHA] Reads of stored objects that failed because the object itself cannot be read, by reason: undecodable, defaults, conversion or panic.",
		}, []string{"reason"})),
	}
}

// Follow has changed called with each logical cluster for which there is a record and for which it
// changes, until stop is called. It must return at once. There is one follower at a time.
func (r *Record) Follow(changed func(logicalcluster.Name)) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changed = changed
	for cluster := range r.clusters {
		changed(cluster)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.changed = func(logicalcluster.Name) {}
	}
}

// Add records an object, and counts the read that failed.
func (r *Record) Add(o Object) {
	r.reads.WithLabelValues(o.Reason).Inc()
	o.Message = strings.ToValidUTF8(o.Message[:min(len(o.Message), messageBytes)], "") // not a part of a character
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.clusters[o.Cluster]
	known, found := of[o.Key]
	if found && *known == o || !found && (len(of) >= perCluster || r.size.Load() >= inAll) {
		return
	}
	if of == nil {
		of = map[string]*Object{}
		r.clusters[o.Cluster] = of
	}
	of[o.Key] = &o
	if !found {
		r.size.Add(1)
		klog.InfoS("Skipping an object that cannot be read", "logicalCluster", o.Cluster, "key", o.Key, "reason", o.Reason, "err", o.Message)
	}
	r.changed(o.Cluster)
}

// Empty reports whether nothing is recorded. It costs nothing.
func (r *Record) Empty() bool { return r.size.Load() == 0 }

// Remove removes an object that was read.
func (r *Record) Remove(cluster logicalcluster.Name, key string) {
	if r.Empty() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(cluster, key)
}

func (r *Record) removeLocked(cluster logicalcluster.Name, key string) {
	if _, found := r.clusters[cluster][key]; !found {
		return
	}
	delete(r.clusters[cluster], key)
	if len(r.clusters[cluster]) == 0 {
		delete(r.clusters, cluster)
	}
	r.size.Add(-1)
	r.changed(cluster)
}

// In returns the objects of a logical cluster whose keys have a prefix, in order.
func (r *Record) In(cluster logicalcluster.Name, prefix string) []Object {
	if r.Empty() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []Object
	for _, key := range slices.Sorted(maps.Keys(r.clusters[cluster])) {
		if strings.HasPrefix(key, prefix) {
			found = append(found, *r.clusters[cluster][key])
		}
	}
	return found
}

// Prune removes the objects of a logical cluster that were deleted or written since, of which
// revision returns the revision of the latest write of a key, and 0 for one that is gone. It returns
// the others.
func (r *Record) Prune(ctx context.Context, cluster logicalcluster.Name, prefix string, revision func(ctx context.Context, key string) (int64, error)) ([]Object, error) {
	found := r.In(cluster, prefix)
	still := found[:0]
	for _, o := range found {
		now, err := revision(ctx, o.Key)
		if err != nil {
			return nil, err
		}
		if now == o.Revision {
			still = append(still, o)
			continue
		}
		r.mu.Lock()
		if known := r.clusters[cluster][o.Key]; known != nil && known.Revision == o.Revision {
			r.removeLocked(cluster, o.Key)
		}
		r.mu.Unlock()
	}
	return still, nil
}

// Describe names the first of some objects, and says how many there are.
func Describe(objects []Object) string {
	texts := make([]string, 0, named+1)
	for i := range objects[:min(named, len(objects))] {
		texts = append(texts, objects[i].String())
	}
	if more := len(objects) - named; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// NewStatus returns the error of a request for objects some of which cannot be read, as kube-apiserver
// returns it.
func NewStatus(resource schema.GroupResource, objects ...Object) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource},
		Message: fmt.Sprintf("failed to read one or more %s from the storage: %s", resource, Describe(objects)),
	}}
}
