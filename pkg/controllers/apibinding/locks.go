package apibinding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// locksAnnotation is the APIBinding of each bound resource, as JSON: {"<resource>.<group>": {"n":
	// "<binding>"}}.
	//
	//reference:metadata LogicalCluster | APIBinding controller
	locksAnnotation = "internal.apis.kcp.io/resource-bindings"
	// maxLocksBytes allows about 2,000 resources. The limit for all annotations of an object is 256 KiB.
	//
	//reference:limit cluster | bound resources, in an annotation for about 2,000 of them | condition `BindingUpToDate` of the APIBinding
	maxLocksBytes = 128 << 10
)

var errTooMany = errors.New("too many resources are bound in the logical cluster")

// withLocks records the resources of a binding in a LogicalCluster. It returns nil if they are already recorded.
func withLocks(lc *corev1alpha1.LogicalCluster, binding string, resources []apisv1alpha2.BoundAPIResource) (*corev1alpha1.LogicalCluster, error) {
	type lock struct {
		Name string `json:"n,omitempty"`
	}
	var all map[string]json.RawMessage
	before := lc.Annotations[locksAnnotation]
	if before != "" {
		if err := json.Unmarshal([]byte(before), &all); err != nil {
			return nil, fmt.Errorf("annotation %s of the LogicalCluster: %w", locksAnnotation, err)
		}
	}
	if all == nil { // there is no annotation, or it is null
		all = map[string]json.RawMessage{}
	}
	maps.DeleteFunc(all, func(_ string, text json.RawMessage) bool {
		var l lock
		return json.Unmarshal(text, &l) == nil && l.Name == binding
	})
	own, err := json.Marshal(lock{binding})
	if err != nil {
		return nil, fmt.Errorf("encoding the locks of %s: %w", binding, err)
	}
	for i := range resources {
		all[resources[i].Resource+"."+resources[i].Group] = own
	}
	after := ""
	if len(all) > 0 {
		text, err := json.Marshal(all)
		if err != nil {
			return nil, fmt.Errorf("encoding the annotation %s: %w", locksAnnotation, err)
		}
		after = string(text)
	}
	if after == before {
		return nil, nil //nolint:nilnil // there is nothing to change
	}
	if len(after) > max(maxLocksBytes, len(before)) {
		return nil, errTooMany
	}
	lc = lc.DeepCopy()
	if after == "" {
		delete(lc.Annotations, locksAnnotation)
		return lc, nil
	}
	metav1.SetMetaDataAnnotation(&lc.ObjectMeta, locksAnnotation, after)
	return lc, nil
}

// replacements are the schemas that bindings are about to bind. Bindings to the same schema do not block each other,
// because an export may have thousands, and compatibility does not depend on the binding. The zero value is ready to use.
type replacements struct {
	mu       sync.Mutex
	pending  map[identified]*replacement
	finished chan struct{} // closed when one of pending ends; nil if no binding waits
}

// identified is a resource with an identity: a wildcard request reads its objects with a single schema.
type identified struct {
	resource schema.GroupResource
	identity string
}

type replacement struct {
	schema   string // its UID
	bindings int
}

// start waits until no other schema is about to be bound for any of the resources, and blocks others until done is called.
func (s *replacements) start(ctx context.Context, resources []apisv1alpha2.BoundAPIResource) (done func(), err error) {
	if len(resources) == 0 {
		return func() {}, nil
	}
	for {
		finished := s.tryStart(resources)
		if finished == nil {
			return func() { s.finish(resources) }, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-finished:
		}
	}
}

// tryStart registers all resources, or returns a channel to wait for. A waiting binding registers none, which prevents deadlocks.
func (s *replacements) tryStart(resources []apisv1alpha2.BoundAPIResource) (finished <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range resources {
		if p := s.pending[identifiedOf(&resources[i])]; p != nil && p.schema != resources[i].Schema.UID {
			if s.finished == nil {
				s.finished = make(chan struct{})
			}
			return s.finished
		}
	}
	if s.pending == nil {
		s.pending = map[identified]*replacement{}
	}
	for i := range resources {
		key := identifiedOf(&resources[i])
		if s.pending[key] == nil {
			s.pending[key] = &replacement{schema: resources[i].Schema.UID}
		}
		s.pending[key].bindings++
	}
	return nil
}

func (s *replacements) finish(resources []apisv1alpha2.BoundAPIResource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range resources {
		key := identifiedOf(&resources[i])
		if s.pending[key].bindings--; s.pending[key].bindings == 0 {
			delete(s.pending, key)
		}
	}
	if s.finished != nil {
		close(s.finished)
		s.finished = nil
	}
}

func identifiedOf(r *apisv1alpha2.BoundAPIResource) identified {
	return identified{schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Schema.IdentityHash}
}

// Storage gives a Binder access to stored bindings.
type Storage interface {
	reserver
	// Like returns the resources that a new binding to an export binds, if an existing binding on the shard has bound all of
	// them. The schemas count as pinned.
	Like(ctx context.Context, export *apisv1alpha2.APIExport) (resources []apisv1alpha2.BoundAPIResource, ok bool)
	// Create stores a binding including its status, without admission and validation.
	Create(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)
}

// Binder creates bindings that are already bound, with a single write. It acts as the system: permissions and webhooks do
// not apply. Its methods may be called concurrently.
type Binder struct {
	storage  Storage
	siblings func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding
}

// NewBinder returns a Binder. The informer must contain all bindings of the shard.
func NewBinder(storage Storage, bindings *client.Informer[*apisv1alpha2.APIBinding]) *Binder {
	return &Binder{storage: storage, siblings: func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding {
		return bindings.Lister().Cluster(cluster).List(nil)
	}}
}

// Bind creates a binding and returns it after its resources are served. It returns nil if the controller must
// bind it, because no binding on the shard is similar or a name is in use. If the binding exists, it returns an
// AlreadyExists error.
func (b *Binder) Bind(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (*apisv1alpha2.APIBinding, error) {
	resources, ok := b.storage.Like(ctx, export)
	if !ok {
		return nil, nil //nolint:nilnil // there is none
	}
	cluster, provider := logicalcluster.From(lc), logicalcluster.From(export)
	p := &plan{provider: provider, export: export, wanted: resources, added: newSchemas(nil, resources)}
	free, conflict, err := reserve(ctx, b.storage, b.siblings, cluster, binding, p)
	if err != nil || conflict != "" {
		return nil, err
	}
	defer free() // the index contains the binding by then
	binding = p.advance(binding)
	apis.Complete(binding, tenancy.PathOf(lc).String(), apis.ExportLabelValue(provider, export.Name))
	written, err := b.storage.Create(ctx, cluster, binding)
	if err != nil {
		return nil, err
	}
	return written, b.storage.WaitFor(ctx, written)
}

// Note records the resources of a binding in its LogicalCluster. If this is impossible, the controller reports the reason.
func (*Binder) Note(lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding) *corev1alpha1.LogicalCluster {
	if recorded, err := withLocks(lc, binding.Name, binding.Status.BoundResources); err == nil && recorded != nil {
		return recorded
	}
	return lc
}

type reserver interface {
	// Reserve reserves the names of schemas until release is called. If one is in use, conflict describes it.
	Reserve(ctx context.Context, cluster logicalcluster.Name, binding string, schemas []types.UID) (release func(), conflict string, err error)
	// WaitFor waits until the resources of a binding are served.
	WaitFor(ctx context.Context, written *apisv1alpha2.APIBinding) error
}

// reserve reserves the names of the added schemas of a plan. The names of system APIs belong to the servers. A binding to a system
// export of root only competes with other bindings to these exports.
func reserve(ctx context.Context, r reserver, siblings func(logicalcluster.Name) []*apisv1alpha2.APIBinding, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding, p *plan) (release func(), conflict string, err error) {
	ref := binding.Spec.Reference.Export
	if p.provider != core.RootCluster || ref == nil || !config.IsRootExport(ref.Name) {
		return r.Reserve(ctx, cluster, binding.Name, p.added)
	}
	for _, other := range siblings(cluster) {
		if other.Name == binding.Name {
			continue
		}
		for i := range p.wanted {
			if want := &p.wanted[i]; boundAs(other, want.Group, want.Resource) != nil {
				return nil, fmt.Sprintf("In group %q, %q is already in use by APIBinding %q", want.Group, want.Resource, other.Name), nil
			}
		}
	}
	return func() {}, "", nil
}
