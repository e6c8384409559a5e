package schemacosts

// Limits on definitions. The largest amounts in 141 definitions of eight well-known projects are given
// with each.
const (
	// maxColumns is the number of printer columns of a version; the largest is 11. A column may show
	// a field as large as the object.
	maxColumns = 64
	// maxUnions and maxDescents are the numbers of commas and of ".." in the path of a column; no path has any.
	// Each of them multiplies the results of the one before.
	maxUnions, maxDescents = 4, 2
	// maxAlternatives is the number of schemas in allOf, anyOf, oneOf and not of one value; the largest is 8.
	maxAlternatives = 100
	// maxItemDefaults is what defaults may add to each item of a list or map, as JSON, and maxFieldDefaults
	// is what they may add to any other object. The largest are 96 and 302.
	maxItemDefaults, maxFieldDefaults = 4 << 10, 64 << 10
)

// Limits on objects.
const (
	// maxDefaults is what defaults may add to an object, as JSON: as much as an object may have that is sent.
	// No object that has more fits into etcd.
	maxDefaults = 3 << 20
	// maxKeyed is the number of entries in all lists of type map or set of an object. The library that manages
	// fields compares them with each other.
	maxKeyed = 10_000
	// maxValidations is the number of comparisons of values with schemas.
	maxValidations = 5_000_000
	// maxMatches is the number of characters that are matched with patterns, each multiplied by the
	// instructions of the pattern.
	maxMatches = 500_000_000
)
