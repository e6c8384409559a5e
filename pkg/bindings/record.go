package bindings

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

type bound struct {
	identified
	uid types.UID // of the schema
	// virtual is set if the objects are not stored with the consumers.
	virtual bool
}

// list is the content that equal bindings share.
type list struct {
	key        string
	provider   logicalcluster.Name
	export     string
	content    content // also used by the informer's objects
	byResource map[schema.GroupResource]bound
	claims     []claim // those in effect
	labels     claimLabels
	bindings   int  // the number of bindings with this content
	complete   bool // everything that the export offered is bound
}

// exportKey also reports whether the export is known yet.
func (l *list) exportKey() (export client.Key, known bool) {
	return client.Key{Cluster: l.provider, Name: l.export}, l.provider != "" && l.export != ""
}

// content is the part of a binding that determines whether two bindings are equal.
type content struct {
	Labels   map[string]string             `json:"labels,omitempty"`
	Mirrored map[string]string             `json:"mirrored,omitempty"` // annotations
	Spec     apisv1alpha2.APIBindingSpec   `json:"spec"`
	Status   apisv1alpha2.APIBindingStatus `json:"status"` // without the times of conditions
}

func contentOf(b *apisv1alpha2.APIBinding) content {
	s := content{Spec: b.Spec, Status: b.Status}
	if label := b.Labels[apis.ExportLabel]; label != "" {
		s.Labels = map[string]string{apis.ExportLabel: label}
	}
	for key, value := range b.Annotations {
		if strings.HasPrefix(key, apis.MirroredPrefix) {
			if s.Mirrored == nil {
				s.Mirrored = map[string]string{}
			}
			s.Mirrored[key] = value
		}
	}
	s.Status.Conditions = slices.Clone(s.Status.Conditions)
	for i := range s.Status.Conditions {
		s.Status.Conditions[i].LastTransitionTime = metav1.Time{}
	}
	return s
}

func (s *content) key() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encoding the content of an APIBinding: %w", err)
	}
	hash := sha256.Sum256(text)
	return string(hash[:]), nil
}

func newList(key string, s content) *list {
	l := &list{
		key: key, provider: logicalcluster.Name(s.Status.APIExportClusterName), content: s,
		byResource: make(map[schema.GroupResource]bound, len(s.Status.BoundResources)),
	}
	if ref := s.Spec.Reference.Export; ref != nil {
		l.export = ref.Name
	}
	for i := range s.Status.BoundResources {
		r := &s.Status.BoundResources[i]
		resource := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		l.byResource[resource] = bound{identified: identityOf(r), uid: types.UID(r.Schema.UID), virtual: len(r.StorageVersions) == 0}
	}
	l.claims = claimsIn(&s.Status)
	l.labels = labelsOf(l.provider, l.export, l.claims)
	binding := &apisv1alpha2.APIBinding{Status: s.Status}
	l.complete = s.Status.Phase == apisv1alpha2.APIBindingPhaseBound && conditions.IsTrue(binding, apisv1alpha2.BindingUpToDate)
	return l
}

func identityOf(r *apisv1alpha2.BoundAPIResource) identified {
	return identified{schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Schema.IdentityHash}
}

// selection returns the objects that bindings with this list let the export access with a verb.
func (l *list) selection(w identified, verb string) claims.Selection {
	for i := range l.claims {
		if c := &l.claims[i]; c.identified == w && permitsVerb(c.verbs, verb) {
			return claims.Select(c.selector)
		}
	}
	if w.resource == bindingsResource && w.identity == "" && slices.Contains(reads, verb) {
		return claims.Select(labels.SelectorFromSet(labels.Set{apis.ExportLabel: apis.ExportLabelValue(l.provider, l.export)}))
	}
	return claims.Selection{}
}

func (l *list) of(export client.Key) bool {
	return l.provider == export.Cluster && l.export == export.Name
}

// exportNotFound reports whether the export did not exist when all exports were loaded.
func (l *list) exportNotFound() bool {
	return slices.ContainsFunc(l.content.Status.Conditions, func(c conditionsv1alpha1.Condition) bool {
		return c.Type == apisv1alpha2.APIExportValid && c.Reason == apisv1alpha2.APIExportNotFoundReason
	})
}

type record struct {
	name     string
	created  metav1.Time
	deleting bool
	revision uint64
	*list
}

func newRecord(b *apisv1alpha2.APIBinding, l *list) *record {
	return &record{name: b.Name, created: b.CreationTimestamp, deleting: b.DeletionTimestamp != nil, revision: revisionOf(b.ResourceVersion), list: l}
}

// revisionOf parses a resource version, which is an etcd revision.
func revisionOf(resourceVersion string) uint64 {
	revision, _ := strconv.ParseUint(resourceVersion, 10, 64)
	return revision
}

// before orders the bindings of a logical cluster. If two have bound the same resource, the first one serves it.
func (r *record) before(other *record) int {
	return cmp.Or(r.created.Compare(other.created.Time), strings.Compare(r.name, other.name))
}

// owner identifies the binding in messages.
func (r *record) owner() string { return fmt.Sprintf("APIBinding %q", r.name) }

func unchanged(before, after *record) bool {
	return before != nil && after != nil && before.list == after.list
}

func findIn(records []*record, resource schema.GroupResource) (*record, bound, bool) {
	for _, r := range records {
		if b, ok := r.byResource[resource]; ok {
			return r, b, true
		}
	}
	return nil, bound{}, false
}

// selectionIn returns the objects that the bindings of a logical cluster let an export access with a verb.
func selectionIn(all []*record, export client.Key, w identified, verb string) claims.Selection {
	for _, r := range all {
		if !r.of(export) {
			continue
		}
		if s := r.selection(w, verb); s.Held() {
			return s
		}
	}
	return claims.Selection{}
}

// schemasOf returns the UIDs of all bound schemas, which are the names of their copies.
func schemasOf(all []*record) []string {
	var names []string
	for _, r := range all {
		for _, b := range r.byResource {
			names = append(names, string(b.uid))
		}
	}
	return names
}

const (
	// unknownRevision is used for changes that the informer missed.
	unknownRevision = math.MaxUint64
	// initialRevision is used for the informer's first list. Its resource version is the actual revision.
	initialRevision = 0
)

const readTimeout = 10 * time.Second

// stored reads the stored bindings of logical clusters. It sends at most one LIST per logical cluster at a time,
// even if there are many requests for missing resources.
type stored struct {
	local *client.Factory

	mu sync.Mutex
	// next contains the reads that have not started. While a read is running, there is an entry, which may be nil.
	next map[logicalcluster.Name]*storedRead
}

// storedRead is shared by all callers that wait before it starts.
type storedRead struct {
	done    chan struct{}
	waiting int // the number of callers
	records []*record
	err     error
}

// read returns the bindings that are stored at some time after the call.
func (s *stored) read(ctx context.Context, cluster logicalcluster.Name) ([]*record, error) {
	s.mu.Lock()
	next, running := s.next[cluster]
	if next == nil {
		next = &storedRead{done: make(chan struct{})}
		s.next[cluster] = next
	}
	next.waiting++
	if !running {
		go s.run(context.WithoutCancel(ctx), cluster)
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-next.done:
		return next.records, next.err
	}
}

// run reads until no caller is waiting.
func (s *stored) run(ctx context.Context, cluster logicalcluster.Name) {
	for {
		s.mu.Lock()
		r := s.next[cluster]
		if r == nil {
			delete(s.next, cluster)
			s.mu.Unlock()
			return
		}
		s.next[cluster] = nil
		s.mu.Unlock()
		r.records, r.err = s.load(ctx, cluster)
		close(r.done)
	}
}

func (s *stored) load(ctx context.Context, cluster logicalcluster.Name) ([]*record, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := kinds.APIBindings.In(s.local.Cluster(cluster.Path())).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // the logical cluster does not exist
	case err != nil:
		return nil, fmt.Errorf("reading the APIBindings: %w", err)
	}
	records := make([]*record, 0, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		records = append(records, newRecord(item, newList("", contentOf(item))))
	}
	return records, nil
}

// share calls f once for concurrent callers with the same key.
func share[T any](ctx context.Context, group *singleflight.Group, key string, timeout time.Duration, f func(context.Context) (T, error)) (T, error) {
	done := group.DoChan(key, func() (any, error) {
		// Other callers may still wait when the request of the first one ends.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return f(ctx)
	})
	var value T
	select {
	case <-ctx.Done():
		return value, ctx.Err()
	case result := <-done:
		value, _ = result.Val.(T)
		return value, result.Err
	}
}

// identified is a resource and an identity. Objects with the same value are stored together.
type identified struct {
	resource schema.GroupResource
	identity string
}

type claim struct {
	identified
	verbs     []string
	selector  labels.Selector // nil for all objects
	requested apisv1alpha2.PermissionClaim
}

func claimsIn(status *apisv1alpha2.APIBindingStatus) []claim {
	var all []claim
	for i := range status.AppliedPermissionClaims {
		applied := &status.AppliedPermissionClaims[i]
		c := claim{
			identified: identified{storedAs(schema.GroupResource{Group: applied.Group, Resource: applied.Resource}), applied.IdentityHash},
			verbs:      applied.Verbs,
			requested:  applied.PermissionClaim,
		}
		if !applied.Selector.MatchAll {
			selector, err := request.LabelSelector(&applied.Selector.LabelSelector)
			if err != nil || selector.Empty() {
				continue // rejected by admission
			}
			c.selector = selector
		}
		all = append(all, c)
	}
	return all
}

var events, eventsOfGroup = corev1.Resource("events"), eventsv1.Resource("events")

// storedAs returns the resource with which objects are stored. All code here must use it, because storage
// compares resources with its own. A claim on events of either group applies to both.
func storedAs(resource schema.GroupResource) schema.GroupResource {
	if resource == eventsOfGroup {
		return events
	}
	return resource
}

// servedAs returns the resources that serve the objects of a claimed one.
func servedAs(resource schema.GroupResource) []schema.GroupResource {
	if storedAs(resource) == events {
		return []schema.GroupResource{events, eventsOfGroup}
	}
	return []schema.GroupResource{resource}
}

func permitsVerb(verbs []string, verb string) bool {
	return slices.Contains(verbs, verb) || slices.Contains(verbs, everyVerb)
}

const everyVerb = "*"

// bindingsResource can be read by providers without a claim, if a binding refers to their export.
var bindingsResource = apisv1alpha2.Resource("apibindings")

// reads are the verbs that providers may use on bindings without a claim.
var reads = []string{"get", "list", "watch"}

type claimLabels map[identified][]storage.ClaimLabel

// labelsOf returns the labels that objects have because of the claims of bindings to an export.
func labelsOf(provider logicalcluster.Name, export string, of []claim) claimLabels {
	if len(of) == 0 {
		return nil
	}
	all := claimLabels{}
	for i := range of {
		c := &of[i]
		key, value, err := apis.ClaimLabel(provider, export, c.requested)
		if err != nil {
			continue // cannot happen, because it was decoded
		}
		all[c.identified] = append(all[c.identified], storage.ClaimLabel{Key: key, Value: value, On: claims.Select(c.selector)})
	}
	return all
}
