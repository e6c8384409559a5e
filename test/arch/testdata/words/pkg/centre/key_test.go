package centre

const inTest = "example.kcp.io/key"

// world says if a stranger has settled.
func world(stranger, unsettled bool) bool { return stranger && !unsettled }
