package bindings

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
)

// identified is a resource under an identity: what is stored together.
type identified struct {
	resource schema.GroupResource
	identity string
}

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
	l.labels = l.labelsOf()
	l.complete = isComplete(&s.Status)
	return l
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

// before orders the bindings of a logical cluster: should two have bound the same
// resource, that of the first is served.
func (r *record) before(other *record) int {
	return cmp.Or(r.created.Compare(other.created.Time), strings.Compare(r.name, other.name))
}

// owner is who has a resource served, for messages.
func (r *record) owner() string { return fmt.Sprintf("APIBinding %q", r.name) }

// slim returns what an informer has to keep of a binding: what controllers find it by,
// and what it says, which those that say the same share.
func (x *Index) slim(b *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	l, err := x.listOf(b)
	if err != nil {
		return nil, err
	}
	annotations := maps.Clone(l.said.Mirrored)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[logicalcluster.AnnotationKey] = b.Annotations[logicalcluster.AnnotationKey]
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
			CreationTimestamp: b.CreationTimestamp, DeletionTimestamp: b.DeletionTimestamp,
			Annotations: annotations, Labels: l.said.Labels,
		},
		Spec: l.said.Spec, Status: l.said.Status,
	}, nil
}

// listOf returns the list of a binding, a new one if no binding in the index has it.
func (x *Index) listOf(b *apisv1alpha2.APIBinding) (*list, error) {
	s := saidBy(b)
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.lists[key]; l != nil {
		return l, nil
	}
	return newList(key, s), nil
}
