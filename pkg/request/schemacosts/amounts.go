package schemacosts

import "fmt"

// Amounts is what an object is multiplied to.
type Amounts struct {
	// Defaults is the size of what defaults add to the object, as JSON.
	Defaults int
	// Keyed is the number of entries in lists that are merged by key.
	Keyed int
	// Validations is the number of comparisons of values with schemas, including those with alternatives.
	Validations int
	// Matches is the number of instructions of patterns, each for each character that is matched.
	Matches int

	// onlyDefaults is set if counting ends for no other limit than that on defaults.
	onlyDefaults bool
}

func (a *Amounts) exceeds() bool {
	if a.onlyDefaults {
		return a.Defaults > maxDefaults
	}
	return a.check(maxKeyedInRequest) != ""
}

// check returns what is above the limits, or "".
func (a *Amounts) check(mostKeyed int) string {
	switch {
	case a.Defaults > maxDefaults:
		return fmt.Sprintf("the defaults in the schema add more than %d bytes to the object: use fewer items or smaller defaults", maxDefaults)
	case a.Keyed > mostKeyed:
		return fmt.Sprintf("the lists of type map and set, and those in metadata, have more than %d entries, at most %d allowed in one object: distribute them over several objects", mostKeyed, maxKeyed)
	case a.Validations > maxValidations:
		return fmt.Sprintf("the validation of the object takes more than %d comparisons of values with schemas: use fewer values, or fewer alternatives (anyOf, oneOf, allOf) in the schema", maxValidations)
	case a.Matches > maxMatches:
		return fmt.Sprintf("the validation of the object runs more than %d instructions of regular expressions: use fewer or shorter strings, maxLength, or smaller patterns in the schema", maxMatches)
	default:
		return ""
	}
}

// count adds the amounts of a value. It ends early if a limit is exceeded.
func (n *node) count(value any, sum *Amounts) {
	sum.Validations += n.validates
	if sum.exceeds() {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		n.countFields(value, sum)
	case []any:
		if n.keyed {
			sum.Keyed += len(value)
		}
		if n.items == nil {
			break
		}
		for _, item := range value {
			if item == nil {
				sum.Defaults += n.items.filled
			}
			n.items.count(item, sum)
		}
	case string:
		sum.Matches += n.pattern * max(1, len(value))
	default:
	}
	for _, branch := range n.branches {
		branch.count(value, sum)
	}
}

func (n *node) countFields(fields map[string]any, sum *Amounts) {
	for name, property := range n.defaulted {
		if fields[name] == nil {
			sum.Defaults += entrySize(name, property.filled)
		}
	}
	for name, value := range fields {
		switch property := n.properties[name]; {
		case property != nil:
			property.count(value, sum)
		case n.additional != nil:
			if value == nil {
				sum.Defaults += n.additional.filled
			}
			n.additional.count(value, sum)
		}
	}
}

// metadata counts the entries of lists in metadata, which has no schema.
func (a *Amounts) metadata(fields map[string]any) {
	for name, value := range fields {
		if list, ok := value.([]any); ok && name != "managedFields" {
			a.Keyed += len(list)
		}
	}
}

// of returns the amounts of an object, or of a patch that looks like one. They may be too small if they are above the
// limits.
func (s *Schema) of(object map[string]any) (sum Amounts) {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		sum.metadata(metadata)
	}
	s.root.count(object, &sum)
	return sum
}
