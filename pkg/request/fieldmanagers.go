package request

// MaxFieldManagers is how many entries metadata.managedFields of an object may have. With each
// write the library compares each of them with all fields that the write changes, and does not
// stop when the request has ended: 16,000 entries and 40,000 fields, in one request of 3 MiB, take a
// minute of a core.
const MaxFieldManagers = 128
