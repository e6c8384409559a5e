package request

// PlacementPath is where a shard reports whether its leader creates and deletes LogicalClusters
// for the Workspaces of other shards: 200 if so. Those of the previous version have no such
// path, and their peers write there.
const PlacementPath = "/placement"
