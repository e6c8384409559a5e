package request

// AdminPath is below which any shard serves what is of the whole installation.
const AdminPath = ViewsPrefix + "admin"

// Admin is /services/admin/apis/core.kcp.io/v1alpha1/shards: what is of the whole installation,
// and of no logical cluster.
var Admin = &Mount{
	Prefix: AdminPath + "/", Form: AdminPath, Whole: true,
	Parse:    func(below string) (Location, error) { return Location{Rest: "/" + below}, nil },
	Wildcard: listOrWatchOrRead,
}
