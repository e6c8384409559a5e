package bindings

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// bound is a resource that a binding has bound.
type bound struct {
	identified
	uid types.UID // of the schema
	// virtual is set if the objects are not stored with the consumers: no version of them is.
	virtual bool
}

// list is what bindings have bound, of which export, and what they say of it. There is
// one for all that say the same.
type list struct {
	key      string
	provider logicalcluster.Name
	export   string
	// said is shared by the objects of the informer.
	said       said
	byResource map[schema.GroupResource]bound
	// claims are those that have effect, and labels what objects show of them.
	claims   []claim
	labels   claimLabels
	bindings int // how many have it
	// complete is set if all is bound that the export offered.
	complete bool
}

// exportKey returns the export that it is of.
func (l *list) exportKey() client.Key { return client.Key{Cluster: l.provider, Name: l.export} }

// said is what is compared to see that a binding says what it should.
type said struct {
	Labels   map[string]string             `json:"labels,omitempty"`
	Mirrored map[string]string             `json:"mirrored,omitempty"` // annotations
	Spec     apisv1alpha2.APIBindingSpec   `json:"spec"`
	Status   apisv1alpha2.APIBindingStatus `json:"status"`
}

// saidBy returns what a binding says, without the times of its conditions.
func saidBy(b *apisv1alpha2.APIBinding) said {
	s := said{Spec: b.Spec, Status: b.Status}
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

// key tells what bindings say apart.
func (s *said) key() (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("encoding what an APIBinding says: %w", err)
	}
	hash := sha256.Sum256(text)
	return string(hash[:]), nil
}

func newList(key string, s said) *list {
	l := &list{
		key: key, provider: logicalcluster.Name(s.Status.APIExportClusterName), said: s,
		byResource: make(map[schema.GroupResource]bound, len(s.Status.BoundResources)),
	}
	if ref := s.Spec.Reference.Export; ref != nil {
		l.export = ref.Name
	}
	for i := range s.Status.BoundResources {
		r := &s.Status.BoundResources[i]
		resource := schema.GroupResource{Group: r.Group, Resource: r.Resource}
		l.byResource[resource] = bound{
			identified: identified{resource, r.Schema.IdentityHash}, uid: types.UID(r.Schema.UID), virtual: len(r.StorageVersions) == 0,
		}
	}
	l.claims = claimsIn(&s.Status)
	l.labels = labelsOf(l.provider, l.export, l.claims)
	l.complete = isComplete(&s.Status)
	return l
}

// isComplete reports whether a binding has bound all that its export offered when the
// status was written.
func isComplete(status *apisv1alpha2.APIBindingStatus) bool {
	said := &apisv1alpha2.APIBinding{Status: *status}
	return status.Phase == apisv1alpha2.APIBindingPhaseBound && conditions.IsTrue(said, apisv1alpha2.BindingUpToDate)
}

// lets returns what the bindings with the list let the export see, and do with the verb.
func (l *list) lets(w identified, verb string) claims.Selection {
	for i := range l.claims {
		if c := &l.claims[i]; c.identified == w && c.allows(verb) {
			return claims.Select(c.selector)
		}
	}
	if w.resource == bindingsResource && w.identity == "" && slices.Contains(reads, verb) {
		return claims.Select(labels.SelectorFromSet(labels.Set{apis.ExportLabel: apis.ExportLabelValue(l.provider, l.export)}))
	}
	return claims.Selection{}
}

// of reports whether the bindings with the list are to an export.
func (l *list) of(export client.Key) bool {
	return l.provider == export.Cluster && l.export == export.Name
}

// has reports whether something is bound under an identity.
func (l *list) has(identityHash string) bool {
	for _, b := range l.byResource {
		if b.identity == identityHash {
			return true
		}
	}
	return false
}

// saysGone reports whether bindings say that there was no export when all were known.
func (l *list) saysGone() bool {
	return slices.ContainsFunc(l.said.Status.Conditions, func(c conditionsv1alpha1.Condition) bool {
		return c.Type == apisv1alpha2.APIExportValid && c.Reason == apisv1alpha2.APIExportNotFoundReason
	})
}

// record is what the index holds of a binding.
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

// revisionOf reads a resource version: those of etcd are numbers.
func revisionOf(resourceVersion string) uint64 {
	revision, _ := strconv.ParseUint(resourceVersion, 10, 64)
	return revision
}

// before orders the bindings of a logical cluster: should two have bound the same
// resource, that of the first is served.
func (r *record) before(other *record) int {
	return cmp.Or(r.created.Compare(other.created.Time), strings.Compare(r.name, other.name))
}

// owner is who has a resource served, for messages.
func (r *record) owner() string { return fmt.Sprintf("APIBinding %q", r.name) }

// exportKey returns the key of the export of a record; false if it is not known.
func (r *record) exportKey() (client.Key, bool) {
	if r == nil || r.list == nil || r.provider == "" || r.export == "" {
		return client.Key{}, false
	}
	return r.list.exportKey(), true
}

// unchanged reports whether a binding still says the same.
func unchanged(before, after *record) bool {
	return before != nil && after != nil && before.list == after.list
}

// findIn returns the binding, among those of a logical cluster, that has bound a resource.
func findIn(records []*record, resource schema.GroupResource) (*record, bound, bool) {
	for _, r := range records {
		if b, ok := r.byResource[resource]; ok {
			return r, b, true
		}
	}
	return nil, bound{}, false
}

// letsIn returns what the bindings of a logical cluster let an export see, and do.
func letsIn(all []*record, export client.Key, w identified, verb string) claims.Selection {
	for _, r := range all {
		if !r.of(export) {
			continue
		}
		if s := r.lets(w, verb); s.Held() {
			return s
		}
	}
	return claims.Selection{}
}

// schemasOf returns the schemas that bindings have bound, which are the names of copies.
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
	// unknownRevision is that of a change that was missed.
	unknownRevision = math.MaxUint64
	// initialRevision is that of what was there when the informer began: at the resource version of its first list.
	initialRevision = 0
)
