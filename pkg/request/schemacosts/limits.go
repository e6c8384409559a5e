package schemacosts

// Limits on definitions. The largest amounts in 141 definitions of eight well-known projects are given
// with each.
const (
	// maxColumns is the number of printer columns of a version; the largest is 11. A column may show
	// a field as large as the object.
	maxColumns = 32
	// maxUnions and maxDescents are the numbers of commas and of ".." in the path of a column; no path has any.
	// Each of them multiplies the results of the one before.
	maxUnions, maxDescents = 4, 2
	// maxAlternatives is the number of schemas in allOf, anyOf, oneOf and not of one value; the largest is 8.
	maxAlternatives = 100
	// maxRequired is the number of required properties of one value, each of which is an error if it is missing; the largest is 10.
	maxRequired = 1000
	// maxItemDefaults is what defaults may add to each item of a list or map, as JSON, and maxFieldDefaults
	// is what they may add to any other object. The largest are 96 and 302.
	maxItemDefaults, maxFieldDefaults = 4 << 10, 64 << 10
)

// Limits on objects.
const (
	// maxDefaults is what defaults may add to an object, as JSON: as much as an object may have that is sent.
	// No object that has more fits into etcd.
	maxDefaults = 3 << 20
	// maxKeyed is the number of entries in all lists of type map or set of an object, and in those of its metadata.
	// Libraries compare them with each other when they apply patches and track who manages fields: 5,000 take up to
	// a second, and 100,000 minutes.
	maxKeyed = 5000
	// maxKeyedInRequest is what one request may contain of them, before it is known what the object had.
	maxKeyedInRequest = 2 * maxKeyed
	// maxValidations is the number of comparisons of values with schemas, each of which takes some 1.2 µs.
	maxValidations = 2_000_000
	// maxMatches is the number of characters that are matched with patterns, each multiplied by the
	// instructions of the pattern. An instruction takes some 10 ns for each character.
	maxMatches = 200_000_000
	// maxProgram is the largest program of a pattern that is compiled, in instructions. Patterns above patterns.MaxSize
	// are in definitions that were stored before there was a limit.
	maxProgram = 100_000
)
