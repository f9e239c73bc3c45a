// Healthy means: this member accepts writes. The first check after the first start makes the replica set.
const password = require("fs").readFileSync("/run/secrets/mongodb_password", "utf8").trim();
db.getSiblingDB("admin").auth("iotsphere", password);
try {
  rs.status();
} catch (error) {
  if (error.codeName !== "NotYetInitialized") throw error;
  rs.initiate({ _id: "iotsphere", members: [{ _id: 0, host: "mongodb:27017" }] });
}
quit(db.hello().isWritablePrimary ? 0 : 1);
