package centre

const inTest = "example.kcp.io/key"
