package claims

import (
	"cmp"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// Selection is which objects of a logical cluster a set holds: none, unless it was
// allowed some. It does not change.
type Selection struct {
	held     bool
	selector labels.Selector
	// names, if not nil, are those of the objects, in order; there is no selector then.
	names []string
}

// Select returns the selection of the objects that a selector matches; nil matches all.
func Select(selector labels.Selector) Selection { return Selection{held: true, selector: selector} }

// SelectNames returns the selection of the objects with the names: none if there are none.
func SelectNames(names []string) Selection {
	if len(names) == 0 {
		return Selection{}
	}
	names = slices.Clone(names)
	slices.Sort(names)
	return Selection{held: true, names: slices.Compact(names)}
}

// Selector returns what the objects have to match; nil for all, and where names select.
func (s Selection) Selector() labels.Selector { return s.selector }

// Held reports whether the set holds the logical cluster.
func (s Selection) Held() bool { return s.held }

// Matches reports whether the set holds the object.
func (s Selection) Matches(obj runtime.Object) bool {
	if !s.held || s.names == nil && (s.selector == nil || s.selector.Empty()) {
		return s.held
	}
	object, err := meta.Accessor(obj)
	return err == nil && s.MatchesObject(object.GetName(), object.GetLabels())
}

// MatchesObject reports whether the set holds an object with the name and the labels.
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

// bytes returns about what the selection takes in memory: its names, or the texts of its selector.
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

// Member is a logical cluster of a set.
type Member struct {
	Cluster   logicalcluster.Name
	Selection Selection
}

// View is a set as it is at one version. It does not change.
type Snapshot struct {
	// Members are in the order of their keys.
	Members []Member
}

func newView(members map[logicalcluster.Name]Selection) *Snapshot {
	v := &Snapshot{Members: make([]Member, 0, len(members))}
	for cluster, selection := range members {
		v.Members = append(v.Members, Member{cluster, selection})
	}
	slices.SortFunc(v.Members, func(a, b Member) int { return compare(a.Cluster, b.Cluster) })
	return v
}

// compare orders logical clusters as keys do, in which a slash ends a name.
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

// From returns the members from a logical cluster on.
func (v *Snapshot) From(cluster logicalcluster.Name) []Member {
	n, _ := v.search(cluster)
	return v.Members[n:]
}

// Selection returns what the set holds of a logical cluster.
func (v *Snapshot) Selection(cluster logicalcluster.Name) Selection {
	if n, found := v.search(cluster); found {
		return v.Members[n].Selection
	}
	return Selection{}
}

func (v *Snapshot) search(cluster logicalcluster.Name) (int, bool) {
	return slices.BinarySearchFunc(v.Members, cluster, func(m Member, cluster logicalcluster.Name) int { return compare(m.Cluster, cluster) })
}
