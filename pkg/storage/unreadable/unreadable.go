// Package unreadable records stored objects that cannot be read, e.g. because they cannot be decoded, or because the
// defaults of their definition expand them beyond a limit. Lists of many logical clusters skip such objects, so that
// they do not affect other tenants. Conditions and metrics report them.
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
	// perCluster and inAll limit the record. Further objects are only counted in the metric.
	perCluster, inAll = 100, 10_000
	// named is the number of objects in an error or condition, messageBytes the maximum length of a message.
	named, messageBytes = 3, 512
)

// Reasons why an object cannot be read.
const (
	Undecodable = "undecodable"
	Defaults    = "defaults"
	Conversion  = "conversion"
	Panic       = "panic"
)

// Error is the permanent error of an object that cannot be read.
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

// Recovered returns an Error for a panic during the read of an object.
func Recovered(panicked any) *Error {
	return &Error{Reason: Panic, Err: fmt.Errorf("reading it panicked: %v", panicked)}
}

// Object is a stored object that cannot be read.
type Object struct {
	// Key is the key in etcd without the prefix of all keys, Revision the revision of its latest write.
	Key             string
	Revision        int64
	Resource        schema.GroupResource
	Cluster         logicalcluster.Name
	Namespace, Name string
	Reason, Message string
}

// String returns the name and the error of the object.
func (o *Object) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s: %s", o.Resource, name, o.Message)
}

// Record contains the known unreadable objects. It can be used concurrently.
type Record struct {
	logger klog.Logger
	size   atomic.Int64

	mu       sync.Mutex
	clusters map[logicalcluster.Name]map[string]*Object
	changed  func(logicalcluster.Name)
	reads    *prometheus.CounterVec
}

// NewRecord returns an empty record that uses the logger of ctx. registerer may be nil.
func NewRecord(ctx context.Context, registerer prometheus.Registerer) *Record {
	return &Record{
		logger:   klog.FromContext(ctx),
		clusters: map[logicalcluster.Name]map[string]*Object{}, changed: func(logicalcluster.Name) {},
		reads: instruments.NewCounterVec(registerer, "shardplane_storage_unreadable_object_reads_total",
			"Reads of stored objects that failed because the object itself cannot be read, by reason: undecodable, defaults, conversion or panic.", "reason"),
	}
}

// Follow calls changed for each logical cluster with recorded objects, and after each change, until stop is
// called. changed must not block. There is at most one follower at a time.
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

// Add records an object, and counts the failed read.
func (r *Record) Add(o Object) {
	r.reads.WithLabelValues(o.Reason).Inc()
	o.Message = strings.ToValidUTF8(o.Message[:min(len(o.Message), messageBytes)], "") // drops a truncated character
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
		r.logger.Info("Skipping an object that cannot be read", "logicalCluster", o.Cluster, "key", o.Key, "reason", o.Reason, "err", o.Message)
	}
	r.changed(o.Cluster)
}

// Empty reports whether the record is empty. It is cheap.
func (r *Record) Empty() bool { return r.size.Load() == 0 }

// Remove removes an object that was read successfully.
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

// In returns the objects of a logical cluster with a key prefix, in order.
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

// Prune removes the objects of a logical cluster that were deleted or written after they were recorded, and
// returns the remaining ones. revision returns the revision of the latest write of a key, or 0 if it was deleted.
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

// Describe returns the first objects with their errors, and the number of the others.
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

// NewStatus returns the error of a request for unreadable objects, as in kube-apiserver.
func NewStatus(resource schema.GroupResource, objects ...Object) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource},
		Message: fmt.Sprintf("failed to read one or more %s from the storage: %s", resource, Describe(objects)),
	}}
}
