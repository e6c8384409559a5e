package versions

import (
	"fmt"
	"math"

	"github.com/shardplane/shardplane/pkg/customresource/packed"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// Defaults multiply: an object of 3 KB may have 10 MB when they are set, and one that was written
// before a definition got larger defaults may have any size. The server sets defaults whenever it
// reads an object, e.g. for its own informers at each start. So it counts first what they add.
const (
	// leastExpansion is what defaults may add to any object, in bytes of memory, and expansionFactor
	// how many times its size they may add to a larger one.
	leastExpansion, expansionFactor = 1 << 20, 16
	// listExpansion is what the objects of a list may have, beyond expansionFactor times their size, that
	// is answered at once.
	listExpansion = 256 << 20
)

// expansion returns how many bytes of memory the defaults of a schema add to a value. It follows
// the defaulting of structural schemas in k8s.io/apiextensions-apiserver.
func (s *shape) expansion(value any) (sum int64) {
	if s == nil {
		return 0
	}
	switch value := value.(type) {
	case map[string]any:
		for _, name := range s.defaulted {
			if set, found := value[name]; !found || s.properties[name].replaces(set) {
				sum = add(sum, s.properties[name].fills)
			}
		}
		for name, field := range value {
			property := s.properties[name]
			if property == nil {
				property = s.additional
				if property.replaces(field) {
					sum = add(sum, property.fills)
				}
			}
			sum = add(sum, property.expansion(field))
		}
	case []any:
		for _, item := range value {
			if s.items.replaces(item) {
				sum = add(sum, s.items.fills)
			}
			sum = add(sum, s.items.expansion(item))
		}
	default:
	}
	return sum
}

// replaces reports whether a value is null where null is not allowed, so that it is set to the default.
func (s *shape) replaces(value any) bool { return s != nil && value == nil && !s.nullable }

// checkExpansion returns an error if the defaults of its version add too much to an object.
func (v *view) checkExpansion(stored *packed.Object, object map[string]any, version string) error {
	limit := max(leastExpansion, expansionFactor*stored.Bytes())
	if added := v.shapes[version].expansion(object); added > limit {
		return &unreadable.Error{Reason: unreadable.Defaults, Err: fmt.Errorf("the defaults of its definition add %d bytes, at most %d are allowed: delete the object, or make the defaults of version %s smaller", added, limit, version)}
	}
	return nil
}

// add is the sum of two numbers that are not negative, or the largest one.
func add(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
