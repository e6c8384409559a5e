package claims

import (
	"cmp"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Selection selects objects of a logical cluster in a set; the zero value selects none. It is immutable.
type Selection struct {
	held     bool
	selector labels.Selector
	// names, if not nil, are the sorted names of the objects; selector is nil then.
	names []string
}

// Select returns the selection of objects that the selector matches; nil matches all.
func Select(selector labels.Selector) Selection { return Selection{held: true, selector: selector} }

// SelectNames returns the selection of objects with the names.
func SelectNames(names []string) Selection {
	if len(names) == 0 {
		return Selection{}
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return Selection{held: true, names: slices.Compact(names)}
}

// Selector returns the selector, which is nil if all objects are selected or if names select them.
func (s Selection) Selector() labels.Selector { return s.selector }

// Held reports whether the logical cluster is in the set.
func (s Selection) Held() bool { return s.held }

// Matches reports whether the object is selected.
func (s Selection) Matches(obj runtime.Object) bool {
	if !s.held || s.names == nil && (s.selector == nil || s.selector.Empty()) {
		return s.held
	}
	object, err := meta.Accessor(obj)
	return err == nil && s.MatchesObject(object.GetName(), object.GetLabels())
}

// MatchesObject reports whether an object with the name and the labels is selected.
func (s Selection) MatchesObject(name string, l labels.Set) bool {
	switch {
	case !s.held:
		return false
	case s.names != nil:
		_, found := slices.BinarySearch(s.names, name)
		return found
	default:
		return s.selector == nil || s.selector.Matches(l)
	}
}

func (s Selection) equal(other Selection) bool {
	return s.held == other.held && (!s.held || s.text() == other.text()) && slices.Equal(s.names, other.names)
}

func (s Selection) text() string {
	if s.selector == nil {
		return ""
	}
	return s.selector.String()
}

// bytes returns the approximate size of the selection: of its names, or the texts of its selector.
func (s Selection) bytes() int {
	n := textBytes(s.names...)
	if s.selector == nil {
		return n
	}
	requirements, _ := s.selector.Requirements()
	for i := range requirements {
		n += textBytes(requirements[i].Key()) + textBytes(requirements[i].ValuesUnsorted()...)
	}
	return n
}

func textBytes(texts ...string) (n int) {
	const header = 16
	for _, text := range texts {
		n += header + len(text)
	}
	return n
}

// Member is a logical cluster in a set.
type Member struct {
	Cluster   logicalcluster.Name
	Selection Selection
}

// Snapshot is the immutable state of a set at one version.
type Snapshot struct {
	// Members are in the order of their storage keys.
	Members []Member
}

func newSnapshot(members map[logicalcluster.Name]Selection) *Snapshot {
	v := &Snapshot{Members: make([]Member, 0, len(members))}
	for cluster, selection := range members {
		v.Members = append(v.Members, Member{cluster, selection})
	}
	slices.SortFunc(v.Members, func(a, b Member) int { return compare(a.Cluster, b.Cluster) })
	return v
}

// compare orders logical clusters like storage keys, in which a slash follows the name.
func compare(a, b logicalcluster.Name) int {
	n := min(len(a), len(b))
	if order := cmp.Compare(a[:n], b[:n]); order != 0 || len(a) == len(b) {
		return order
	}
	if len(a) < len(b) {
		return cmp.Compare('/', b[n])
	}
	return cmp.Compare(a[n], '/')
}

// From returns the members starting at a logical cluster.
func (v *Snapshot) From(cluster logicalcluster.Name) []Member {
	n, _ := v.search(cluster)
	return v.Members[n:]
}

// Selection returns the selection of a logical cluster.
func (v *Snapshot) Selection(cluster logicalcluster.Name) Selection {
	if n, found := v.search(cluster); found {
		return v.Members[n].Selection
	}
	return Selection{}
}

func (v *Snapshot) search(cluster logicalcluster.Name) (int, bool) {
	return slices.BinarySearchFunc(v.Members, cluster, func(m Member, cluster logicalcluster.Name) int { return compare(m.Cluster, cluster) })
}
